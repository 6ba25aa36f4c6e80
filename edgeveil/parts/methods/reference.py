"""The noise-free reference of a demo: the same two halves, on public data, without noise.

For tools only. It writes to no ledger and prices nothing: what it shows is not private.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edgeveil.data.records import Records
from edgeveil.parts.exchange import TRAIN, Exchange, Tensors
from edgeveil.parts.methods.fm import FmCloud, FmDevice
from edgeveil.parts.methods.fm_budget import FmParameters
from edgeveil.parts.models.softmax_head import head_probabilities, probabilities
from edgeveil.parts.setting import Setting


def noise_free_reference(
    parameters: FmParameters,
    setting: Setting,
    train: Records,
    test: Records,
    before: Callable[[Exchange], None] = lambda _exchange: None,
) -> list[float]:
    """Test accuracy after each training round without noise; `train` pools all devices' records.

    The mean over `setting.devices` devices of exact sums is the pooled sum over that number, and
    local steps are linear in the sums, so no device needs to be played alone. The ridge stays
    as the noise would have set it. A PCA is that of the pooled records, whichever the job names.
    `before` is called ahead of each exchange; what it raises ends the training.
    """
    setting = _pooled(setting)
    device, cloud = FmDevice(parameters, setting), FmCloud(parameters, setting)
    state = cloud.initial_state()
    phi = setting.features(test.x)
    accuracies: list[float] = []
    for exchange in cloud.plan():
        before(exchange)
        tensors = cloud.package(state, exchange)
        mean = device.sums(exchange, tensors, train) / setting.devices
        segments = device.finish(exchange, tensors, mean)
        state = cloud.absorb(state, exchange, segments, setting.devices)
        if exchange.phase == TRAIN:
            predicted = head_probabilities(phi, cloud.model(state)).argmax(axis=1)
            accuracies.append(float((predicted == test.y).mean()))
    return accuracies


def _pooled(setting: Setting) -> Setting:
    if setting.projection is None:
        return setting
    common = {"name": "ldp_fpca", "noise": "gaussian"}
    return replace(setting, projection=setting.projection.model_copy(update=common))


def accuracy(weights: Tensors, setting: Setting, test: Records) -> float:
    """Fraction of `test` records whose most probable class is their label."""
    predicted = probabilities(setting.features, test.x, weights).argmax(axis=1)
    return float((predicted == test.y).mean())
