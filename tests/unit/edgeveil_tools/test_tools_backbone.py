import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import edgeveil
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import open_session
from edgeveil.parts.features.onnx import cached_backbone, opened
from edgeveil_tools import cli
from edgeveil_tools.backbone import command as backbone
from edgeveil_tools.backbone.encoders import FEATURES, onnx_encoder, train_encoder

TINY = {"steps": 4, "drawings": 40}
TEXT = "features: [{{name: identity}}, {{name: onnx, file: {}}}]\n"


@pytest.fixture(scope="module")
def encoder():
    return train_encoder(seed=1, **TINY)


@pytest.fixture(scope="module")
def graph(encoder):
    return onnx_encoder(encoder)


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """The commands on a tiny budget, with a cache of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(backbone, "STEPS", 4)
    monkeypatch.setattr(backbone, "DRAWINGS", 300)


def test_the_graph_gives_what_torch_gives(encoder, graph):
    images = torch.rand(5, 1, 28, 28, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        wanted = encoder(images).numpy()
    (found,) = open_session(graph).run(None, {"image": images.numpy()})
    assert found.shape == (5, FEATURES)
    assert np.abs(found - wanted).max() < 1e-4
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-4)
    check_graph(graph)
    form = opened(graph).form
    assert (form.input_shape, form.output_dim) == ((1, 28, 28), FEATURES)
    assert f"{len(graph):,} bytes" in Path("docs/privacy.md").read_text("utf-8")


def test_train_and_show_say_the_same(quick, tmp_path, capsys):
    out = tmp_path / "own.onnx"
    assert cli.main(["backbone", "digits", "--out", str(out), "--json"]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert cli.main(["check", str(out), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["files"]
    assert {name: shown[name] for name in ("sha256", "input_shape", "features")} == {
        name: trained[name] for name in ("sha256", "input_shape", "features")
    }
    assert trained["size_bytes"] == out.stat().st_size
    assert not cached_backbone("digits").exists()


def test_the_cache_is_filled_once(quick, tmp_path):
    assert len(edgeveil.validate(Path("configs/jobs/mnist_fm_local.yaml"))) == 1
    assert not cached_backbone("digits").exists(), "a check trains nothing"
    (tmp_path / "job.yaml").write_text(TEXT.format("digits"))
    said = []
    backbone.ensure_for_jobs([tmp_path / "job.yaml"], said.append)
    assert said[-1].endswith("digits: 100 %")
    assert len(set(said)) == len(said)
    first = cached_backbone("digits").read_bytes()
    said.clear()
    backbone.ensure_for_jobs([tmp_path / "job.yaml"], said.append)
    assert not said
    assert cached_backbone("digits").read_bytes() == first
    assert list(cached_backbone("digits").parent.iterdir()) == [cached_backbone("digits")]


@pytest.mark.parametrize(
    "text", ["job: " + "{a: " * 900 + "1" + "}" * 900, 'job: !!int ""', "a: ["]
)
def test_whether_a_file_names_the_encoder_is_asked_of_any_file(tmp_path, text):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    backbone.ensure_for_jobs([path, tmp_path, tmp_path / "none"])
    os.mkfifo(tmp_path / "pipe")
    backbone.ensure_for_jobs([tmp_path / "pipe"])  # nobody writes to it
