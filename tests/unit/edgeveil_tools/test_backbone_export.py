"""`edgeveil backbone MODULE:FUNCTION`: a torch module becomes a backbone's ONNX file."""

import json

import numpy as np
import pytest
import torch

from edgeveil.parts.features import OnnxParameters, build_features
from edgeveil.parts.features.onnx import opened
from edgeveil_tools import cli

CODE = """
import torch
from torch import nn

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.out = nn.Linear(4 * 64, 6)

    def forward(self, x):
        x = self.norm(self.conv(x.view(-1, 1, 8, 8))).relu()
        return self.out(x.flatten(1))

def broken():
    raise RuntimeError("no disk")

class Mixed(nn.Module):
    def forward(self, x):
        return x - x.mean(0)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "encoder_of_mine.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def export(*more, function="Encoder", shape="1,8,8"):
    where = [f"encoder_of_mine:{function}", "--out", "encoder.onnx"]
    return cli.main(["backbone", *where, "--input-shape", shape, *more])


def trained():
    """A module with weights and statistics of its own."""
    from encoder_of_mine import Encoder

    torch.manual_seed(9)
    net = Encoder().train()
    net(torch.randn(32, 1, 8, 8) + 2)
    return net.eval()


def test_what_is_exported_gives_what_the_module_gives(folder, capsys):
    net = trained()
    torch.save(net.state_dict(), folder / "encoder.pt")
    assert export("--weights", "encoder.pt", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    graph = (folder / "encoder.onnx").read_bytes()
    assert (said["input_shape"], said["features"]) == ([1, 8, 8], 6)
    x = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        wanted = net(x).numpy()
    found = np.stack([opened(graph).run(one[None].numpy()) for one in x])
    assert np.allclose(found, wanted, atol=1e-4)
    entry = OnnxParameters.model_validate(
        {"name": "onnx", "file": "encoder.onnx"}, context={"folder": folder}
    )
    assert build_features([entry])(x.numpy()).shape == (3, 6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"function": "broken"}, "RuntimeError: no disk"),
        ({"function": "Absent"}, "cannot be called"),
        ({"shape": "7"}, "check --input-shape"),
        ({"function": "Mixed", "shape": "4"}, "encoder_of_mine:Mixed"),
    ],
)
def test_what_is_no_backbone_is_refused_and_nothing_is_written(folder, capsys, options, said):
    assert export(**options) != 0
    assert said in capsys.readouterr().err
    assert not (folder / "encoder.onnx").exists()


def test_weights_that_do_not_fit_are_told_by_name(folder, capsys):
    weights = trained().state_dict()
    del weights["norm.running_var"]
    torch.save(weights, folder / "encoder.pt")
    assert export("--weights", "encoder.pt") != 0
    assert "lacks norm.running_var" in capsys.readouterr().err


def test_weights_are_shown_with_the_digest_that_owners_allow(folder, capsys):
    torch.save({"w": torch.ones(2, 3)}, folder / "w.pt")
    assert cli.main(["check", "w.pt"]) == 0
    assert "w.pt: 6 values in 1 tensor\n" in capsys.readouterr().out
