"""Device half of every method that uploads updates: train, pass the stages, price."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.errors import ProtocolError
from edgeveil.parts.exchange import KEPT, Answer, Exchange, Tensors
from edgeveil.parts.features import valid_records
from edgeveil.parts.methods.updates.pipeline import Pipeline
from edgeveil.parts.setting import Setting, network_of
from edgeveil.parts.update import Memory, Task, Trainer, Update, segments_of
from edgeveil.privacy.events import Event
from edgeveil.privacy.sampler import RandomBytes, os_random
from edgeveil.subnormals import flushed_training


class UpdateDevice:
    """Built from public facts alone."""

    def __init__(self, trainer: Trainer, setting: Setting) -> None:
        self._trainer, self._setting = trainer, setting
        self._network = network_of(setting)
        self._stages = Pipeline(setting)

    def price(self, exchange: Exchange) -> tuple[Event, ...]:
        """The trainer's events and the stages'; of an un-noised update none where one protects."""
        return self._stages.price(exchange, self._trainer.price(exchange))

    @flushed_training()
    def answer(
        self,
        exchange: Exchange,
        tensors: Tensors,
        records: Records,
        random_bytes: RandomBytes = os_random,
        processor: str = "auto",
    ) -> Answer:
        """The update's segments, float32. Tensors named `kept/…` are this device's own.

        Raises `ProtocolError` for a package of wrong form, before any record is read.
        """
        weights = self._checked(tensors)
        self._network.prepare()
        memory: Memory = {
            name.removeprefix(KEPT): np.asarray(array)
            for name, array in tensors.items()
            if name.startswith(KEPT)
        }
        network, setting = self._network, self._setting
        valid = valid_records(records.x, records.y, setting.classes)
        own = Records(records.x[valid], records.y[valid])
        task = Task(exchange, network, weights, own, memory, random_bytes, processor)
        update = finite(self._trainer.train(task, self._stages.start(task)))
        update = self._stages.apply(task, update)
        return Answer(
            segments_of(network, update, whole=setting.whole), self.price(exchange), task.memory
        )

    def _checked(self, tensors: Tensors) -> dict[str, NDArray[np.float32]]:
        weights = {}
        for weight in self._network.weights:
            found = tensors.get(weight.name)
            if found is None or (found.shape, str(found.dtype)) != (weight.shape, "float32"):
                raise ProtocolError("bad_package", f"tensor '{weight.name}' has a wrong form")
            if not np.isfinite(found).all():
                raise ProtocolError("bad_package", f"tensor '{weight.name}' is not finite")
            weights[weight.name] = np.asarray(found, np.float32)
        return weights


def finite(update: Update) -> Update:
    """The update with 0 for what is no number: whether training diverged is not told."""
    return {name: np.nan_to_num(array, posinf=0.0, neginf=0.0) for name, array in update.items()}
