import json
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

TEXT = "features: [{name: identity}, {name: onnx, file: digits}]\n"


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """The commands on a tiny budget, with a cache of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(backbone, "STEPS", 4)
    monkeypatch.setattr(backbone, "DRAWINGS", 300)


def test_the_graph_gives_what_torch_gives():
    encoder = train_encoder(seed=1, steps=4, drawings=40)
    graph = onnx_encoder(encoder)
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


def test_it_is_trained_by_command_shown_by_a_check_and_cached_once_by_a_run(
    quick, tmp_path, capsys
):
    out, cached = tmp_path / "own.onnx", cached_backbone("digits")
    assert cli.main(["backbone", "digits", "--out", str(out), "--json"]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert cli.main(["check", str(out), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["files"]
    for name in ("sha256", "input_shape", "features"):
        assert shown[name] == trained[name]
    assert trained["size_bytes"] == out.stat().st_size
    assert len(edgeveil.validate(Path("configs/jobs/mnist_fm_local.yaml"))) == 1
    assert not cached.exists(), "neither command nor check fills the cache"
    (tmp_path / "job.yaml").write_text(TEXT)
    lines = []
    backbone.ensure_for_jobs([tmp_path / "job.yaml"], lines.append)
    assert lines[-1].endswith("digits: 100 %")
    first = cached.read_bytes()
    for text in ("job: " + "{a: " * 900 + "1" + "}" * 900, 'job: !!int ""', "a: ["):
        (tmp_path / "odd.yaml").write_text(text)
        backbone.ensure_for_jobs([tmp_path / "odd.yaml", tmp_path, tmp_path / "none"])
    lines.clear()
    backbone.ensure_for_jobs([tmp_path / "job.yaml"], lines.append)
    assert not lines
    assert cached.read_bytes() == first
    assert list(cached.parent.iterdir()) == [cached]
