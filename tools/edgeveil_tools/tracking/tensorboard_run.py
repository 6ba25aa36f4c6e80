"""A run as TensorBoard's event files, written without torch and TensorFlow."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.text.plugin_data_pb2 import TextPluginData
from tensorboard.summary.writer.event_file_writer import EventFileWriter


class TensorboardTracker:
    """A folder in DIR, the `tensorboard --logdir`, named by run and time."""

    def __init__(self, where: str, name: str, parameters: Mapping[str, Any]) -> None:
        trial, number = f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}", 1
        self._folder = Path(where) / trial
        while self._folder.exists():
            number += 1
            self._folder = Path(where) / f"{trial}-{number}"
        self._writer = EventFileWriter(str(self._folder))
        self._write(hparams_pb(dict(parameters), trial_id=trial))
        self._write(_text("parameters", parameters))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        values = [Summary.Value(tag=key, simple_value=value) for key, value in metrics.items()]
        self._write(Summary(value=values), step)
        self._writer.flush()

    def end(self, status: str, facts: Mapping[str, str], files: Sequence[Path]) -> None:
        self._write(_text("outcome", {"status": status, **facts}))
        self._writer.close()
        for path in files:
            shutil.copyfile(path, self._folder / path.name)

    def _write(self, summary: Any, step: int = 0) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))


def _text(tag: str, facts: Mapping[str, Any]) -> Any:
    """Return a table as TensorBoard's own `text` does, which loads TensorFlow."""
    rows = [f"| {key} | {str(value).replace('|', '/')} |" for key, value in facts.items()]
    markdown = "\n".join(["| | |", "| --- | --- |", *rows])
    content = TextPluginData(version=0).SerializeToString()
    kind = SummaryMetadata.PluginData(plugin_name="text", content=content)
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[markdown.encode()], tensor_shape=shape)
    value = Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=kind), tensor=tensor)
    return Summary(value=[value])
