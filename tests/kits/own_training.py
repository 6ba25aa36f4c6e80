"""A training function as a user's script has it."""

from torch import nn


def fit(model, loader, lr=0.1):
    for x, y in loader:
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        for weight in model.parameters():
            weight.data.sub_(lr * weight.grad)
    return model
