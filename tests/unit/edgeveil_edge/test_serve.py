"""A released model behind HTTP, and records whose values have names."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeveil.data.schema import DataSchema, schema_metadata
from edgeveil.errors import UsageError
from edgeveil.parts.features.identity import Identity, IdentityParameters
from edgeveil.parts.models.heads import bake, build_graph
from edgeveil_tools.cli import main

SCHEMA = DataSchema.model_validate(
    {
        "origin": "public",
        "label": {"column": "kind", "classes": ("small", "large")},
        "columns": (
            {"name": "age", "number": (0, 100)},
            {"name": "colour", "category": ("red", "green")},
        ),
    }
)


def model(path: Path, turn: int = 0) -> Path:
    """Old, or not red, is large."""
    head = np.roll(np.array([[-5, 5], [5, -5], [-5, 5], [0, 0]], np.float32), turn, axis=1)
    weights = {"centre": np.zeros(4, np.float32), "radius": np.full(1, 0.1, np.float32)}
    graph = build_graph(Identity(IdentityParameters()), (4,), 2)
    made = path.with_suffix(".new")
    made.write_bytes(bake(graph, {**weights, "weight": head}, schema_metadata(SCHEMA)))
    made.replace(path)
    return path


@contextmanager
def serving(path: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "edgeveil_tools.cli", "serve", str(path), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            yield line.split("/v1/")[0]
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()


def asked(url: str, **body: Any) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        f"{url}/v1/predict", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def test_a_model_answers_records_by_name_by_number_and_follows_its_file(tmp_path: Path) -> None:
    path = model(tmp_path / "model.onnx")
    with serving(path) as url:
        with urllib.request.urlopen(f"{url}/v1/model", timeout=20) as answer:
            told = json.load(answer)
        assert told["columns"] == ["age", "colour"]
        assert told["classes"] == ["small", "large"]
        records = [{"age": 10, "colour": "red"}, {"age": 90}, {"age": None, "colour": "blue"}]
        status, found = asked(url, records=records)
        assert status == 200
        assert [one["name"] for one in found["predictions"]][:2] == ["small", "large"]
        encoded = [-0.8, 1, 0, 0]  # the first of them, as the schema reads it
        assert asked(url, record=encoded)[1]["predictions"] == found["predictions"][:1]
        assert asked(url, record={"age": "10", "colour": "red"})[1] == {
            **found,
            "predictions": found["predictions"][:1],
        }
        model(path, turn=1)
        deadline = time.monotonic() + 20
        while asked(url, record=encoded)[1]["predictions"][0]["name"] == "small":
            assert time.monotonic() < deadline


def test_what_is_no_model_is_refused_before_anything_listens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.onnx").write_bytes(b"nothing")
    assert main(["serve", str(tmp_path / "model.onnx")]) != 0
    assert "is no ONNX model" in capsys.readouterr().err
    assert main(["serve", str(tmp_path / "gone.onnx")]) != 0
    assert "no such file" in capsys.readouterr().err
    path = model(tmp_path / "model.onnx")
    assert main(["serve", str(path), "--port", "0"]) == UsageError.exit_code
