"""Weights that configs/jobs/digits_adapters.yaml begins with: a small perceptron, taught digits
that nobody wrote, drawn from pen strokes. No record of any device is in them.

    python docs/examples/pretrain_digits.py configs/jobs/digits_drawn.safetensors
"""

import sys
from collections import OrderedDict
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from edgeveil_tools.backbone.drawings import drawn_digits

DRAWINGS, STEPS, BATCH = 6000, 1500, 128


def pictures(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Drawings as records of scikit-learn's digits are: 8 x 8 blocks, ink 0 to 1."""
    drawn, labels = drawn_digits(count, seed)
    middle = torch.as_tensor(drawn)[:, None, 6:34, 6:34]
    return nn.functional.adaptive_avg_pool2d(middle, 8).flatten(1), torch.as_tensor(labels)


def pretrained(seed: int = 0) -> nn.Module:
    """64 - 64 - 10, with the names and shapes that `model: {name: mlp, hidden: [64]}` has."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        OrderedDict(hidden1=nn.Linear(64, 64), relu1=nn.ReLU(), output=nn.Linear(64, 10))
    )
    x, y = pictures(DRAWINGS, seed)
    steps = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for _ in range(STEPS):
        some = torch.randint(len(x), (BATCH,))
        loss = nn.functional.cross_entropy(net(x[some]), y[some])
        steps.zero_grad()
        loss.backward()
        steps.step()
    return net


if __name__ == "__main__":
    save_file(pretrained().state_dict(), Path(sys.argv[1]))
