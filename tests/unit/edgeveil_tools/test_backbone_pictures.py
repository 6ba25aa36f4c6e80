"""The encoder of colour pictures: it is taught by drawn ones alone, and devices can run it."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import open_session
from edgeveil.parts.features.onnx import MAX_BACKBONE_BYTES, opened
from edgeveil.parts.features.procedural_pictures import procedural_pictures
from edgeveil_tools.backbone import contrastive
from edgeveil_tools.backbone.contrastive import (
    FEATURES,
    SIDE,
    axes,
    onnx_pictures,
    train_pictures,
    views,
)

TINY = {"steps": 3, "drawings": 600}


@pytest.fixture(scope="module")
def trained():
    return train_pictures(seed=1, **TINY)


@pytest.fixture(scope="module")
def graph(trained):
    encoder, drawings = trained
    return onnx_pictures(encoder, *axes(encoder, drawings))


def test_the_graph_gives_what_torch_gives(trained, graph):
    encoder, drawings = trained
    pictures = torch.rand(5, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(3))
    mean, onto = axes(encoder, drawings)
    with torch.no_grad():
        wanted = (encoder.pooled(pictures).numpy() - mean) @ onto
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    (found,) = open_session(graph).run(None, {"image": pictures.numpy()})
    assert found.shape == (5, FEATURES)
    assert np.abs(found - wanted).max() < 1e-4


def test_devices_run_the_graph(graph):
    check_graph(graph)
    assert opened(graph).form.input_shape == (3, SIDE, SIDE)
    assert opened(graph).form.output_dim == FEATURES


def test_it_is_small_enough_to_ship_and_as_large_as_the_text_says(graph):
    """How long it was taught decides none of its bytes' number."""
    assert len(graph) <= min(20_000_000, MAX_BACKBONE_BYTES)
    said = Path("docs/privacy.md").read_text("utf-8")
    assert f"{len(graph):,} bytes" in said


@pytest.mark.drill
def test_the_seed_decides_all(trained):
    torch.manual_seed(9)  # nothing of the caller's own
    wanted = [value.clone() for value in trained[0].state_dict().values()]
    for seed, same in ((1, True), (2, False)):
        found = train_pictures(seed=seed, **TINY)[0].state_dict().values()
        assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True)) is same


def test_training_leaves_the_callers_chance_alone():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    train_pictures(seed=1, **TINY)
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.drill
def test_training_brings_views_of_one_picture_together(monkeypatch):
    """Of pictures that it was never shown: drawn by the same rule, of another series."""
    monkeypatch.setattr(contrastive, "_BATCH", 32)
    fresh = procedural_pictures(64, (3, 48, 48), series=99) / 255
    torch.manual_seed(0)
    one, other = views(torch.from_numpy(fresh)), views(torch.from_numpy(fresh))

    def found(steps):
        encoder, _ = train_pictures(steps, drawings=300, seed=1)
        with torch.no_grad():
            return int(((encoder(one) @ encoder(other).T).argmax(1) == torch.arange(64)).sum())

    assert found(120) > 1.4 * found(1)


def test_views_are_pictures_and_no_two_the_same():
    drawn = torch.from_numpy(procedural_pictures(8, (3, 48, 48))) / 255
    one, other = views(drawn), views(drawn)
    assert one.shape == (8, 3, SIDE, SIDE)
    assert float(one.min()) >= 0
    assert float(one.max()) <= 1
    assert (one - other).abs().amax((1, 2, 3)).min() > 0.01


def test_other_series_are_other_pictures_and_a_series_is_always_the_same():
    first, again, other = (procedural_pictures(4, (3, 8, 8), series) for series in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any((1, 2, 3)).all()


def test_progress_goes_up_to_all(monkeypatch):
    monkeypatch.setattr(contrastive, "_AT_ONCE", 200)
    told = []
    train_pictures(seed=1, **TINY, on_progress=told.append)
    assert len(told) == 6
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1)


def test_the_examples_differ_in_their_features_alone():
    """So the two accuracies of CIFAR-10 say what the encoder is worth at one price."""
    plain, encoded = (
        yaml.safe_load(Path(f"configs/jobs/{name}.yaml").read_text("utf-8"))
        for name in ("cifar10_shared", "cifar10_encoder_shared")
    )
    maps = encoded.pop("features")
    assert [(one["name"], one.get("file")) for one in maps] == [
        ("pictures", None),
        ("onnx", "pictures"),
    ]
    assert maps[0]["dimension"] == plain.pop("features")[0]["dimension"]
    assert encoded.pop("job") != plain.pop("job")
    assert encoded == plain
