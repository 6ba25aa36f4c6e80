"""A run as TensorBoard's event files, written without torch and TensorFlow."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.text.plugin_data_pb2 import TextPluginData
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from edgeveil_tools.tracking.tracker import Metrics, RunOutcome, TrackedRun


class TensorboardRun:
    """A folder below DIR: the job's id at a cloud, else name and time."""

    def __init__(self, folder: Path) -> None:
        self._base, self._folder = folder, folder
        self._writer: Any = None

    def begin(self, run: TrackedRun) -> None:
        """See `Tracker`; of a job that is followed anew the earlier files are replaced."""
        made = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        name, number = run.key or f"{run.name}-{made}", 1
        self._folder = self._base / name
        while not run.key and self._folder.exists():
            number += 1
            self._folder = self._base / f"{name}-{number}"
        for earlier in self._folder.glob("events.out.tfevents.*"):
            earlier.unlink()
        self._writer = EventFileWriter(str(self._folder))
        self._write(hparams_pb(dict(run.parameters), trial_id=name))
        self._write(_text("parameters", _table(run.parameters)))

    def log(self, metrics: Metrics, step: int) -> None:
        """See `Tracker`."""
        values = [Summary.Value(tag=key, simple_value=value) for key, value in metrics.items()]
        self._write(Summary(value=values), step)
        self._writer.flush()

    def end(self, outcome: RunOutcome) -> None:
        """See `Tracker`."""
        self.log(outcome.metrics, 0)
        self._write(_text("outcome", _table({"status": outcome.status, **outcome.facts})))
        self._writer.close()
        for path in outcome.files:
            shutil.copyfile(path, self._folder / path.name)

    def _write(self, summary: Any, step: int = 0) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))


def _text(tag: str, markdown: str) -> Any:
    """As TensorBoard's own `text` makes it, which loads TensorFlow."""
    kind = SummaryMetadata.PluginData(
        plugin_name="text", content=TextPluginData(version=0).SerializeToString()
    )
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[markdown.encode()], tensor_shape=shape)
    value = Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=kind), tensor=tensor)
    return Summary(value=[value])


def _table(facts: Any) -> str:
    rows = (f"| {key} | {re.sub(r'[|]', '/', str(value))} |" for key, value in facts.items())
    return "\n".join(["| | |", "| --- | --- |", *rows])


def open_tracker(where: str) -> TensorboardRun:
    """For a folder that `tensorboard --logdir` is given."""
    return TensorboardRun(Path(where))
