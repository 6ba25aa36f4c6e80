"""Local SGD by hand, and against PyTorch's own optimiser."""

import pytest
import torch

from edgeveil.parts.methods.sgd import Steps


def test_two_steps_by_hand():
    """ℓ = w², η = 0.1, momentum ½: w = 1 → 1 − 0.2 = 0.8 → 0.8 − 0.1·(0.1·10 + 1.6) = 0.54."""
    weight = torch.tensor([1.0], requires_grad=True)
    steps = Steps([weight], 0.1, 0.5)
    found = []
    for _ in range(2):
        steps.take((weight**2).sum())
        found.append(weight.item())
    assert found == pytest.approx([0.8, 0.54])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_they_are_pytorchs(momentum):
    def trained(optimise):
        torch.manual_seed(3)
        w = [torch.randn(4, 2, requires_grad=True), torch.randn(2, requires_grad=True)]
        step = optimise(w)
        for _ in range(5):
            x, y = torch.randn(3, 4), torch.tensor([0, 1, 1])
            step(torch.nn.functional.cross_entropy(x @ w[0] + w[1], y))
        return w

    def theirs(weights):
        optimiser = torch.optim.SGD(weights, 0.3, momentum=momentum)

        def step(loss):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

        return step

    pairs = zip(trained(lambda w: Steps(w, 0.3, momentum).take), trained(theirs), strict=True)
    for ours, expected in pairs:
        assert torch.equal(ours, expected)
