"""The encoder of colour pictures: it is taught by drawn ones alone, and devices can run it."""

import numpy as np
import pytest
import torch

from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import open_session
from edgeveil.parts.features.onnx import opened
from edgeveil.parts.features.pictures import procedural_pictures
from edgeveil_tools.backbone import encoders
from edgeveil_tools.backbone.encoders import (
    PICTURE_FEATURES,
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
    assert found.shape == (5, PICTURE_FEATURES)
    assert np.abs(found - wanted).max() < 1e-4


def test_devices_run_the_graph(graph):
    check_graph(graph)
    assert opened(graph).form.input_shape == (3, SIDE, SIDE)
    assert opened(graph).form.output_dim == PICTURE_FEATURES


@pytest.mark.drill
def test_training_brings_views_of_one_picture_together(monkeypatch):
    """Of pictures that it was never shown: drawn by the same rule, of another series."""
    monkeypatch.setattr(encoders, "_VIEWED", 32)
    fresh = procedural_pictures(64, (3, 48, 48), series=99) / 255
    torch.manual_seed(0)
    one, other = views(torch.from_numpy(fresh)), views(torch.from_numpy(fresh))

    def found(steps):
        encoder, _ = train_pictures(steps, drawings=300, seed=1)
        with torch.no_grad():
            return int(((encoder(one) @ encoder(other).T).argmax(1) == torch.arange(64)).sum())

    assert found(120) > 1.4 * found(1)
