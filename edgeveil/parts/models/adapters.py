"""Low-rank adapters on pretrained weights (LoRA, `model.adapters`).

An adapted weight is W + (α/r)·B·A (Hu et al. 2021): W, from the job's state_dict, is frozen and not
sent; A (r, in) starts with public random values, B (out, r) with 0. Updates, noise and the cloud's
state cover only adapters and head. Devices run, and releases contain, merged weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import DataError
from edgeveil.parts.models.layers import Shape, Weight
from edgeveil.parts.models.network import START_SEED, AdapterParameters, Network

if TYPE_CHECKING:
    from torch import Tensor

    from edgeveil.parts.features import FeatureMap
    from edgeveil.parts.models.layers import Tensors
    from edgeveil.privacy.sampler import RandomBytes

A, B = "lora_a", "lora_b"


@dataclass(frozen=True)
class AdaptedNetwork(Network):
    """Network with the weights of `base` frozen, except adapters and the head."""

    base: Network = field(kw_only=True)
    adapters: AdapterParameters = field(kw_only=True)

    def saved_name(self, weight: str) -> str:
        return self.base.saved_name(weight)

    def saved(self, weights: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        return self.base.saved(weights)

    def graph(self, front: tuple[FeatureMap, Shape] | None = None) -> bytes:
        return self.base.graph(front)

    @cached_property
    def head(self) -> frozenset[str]:
        """Names of the weights that are trained whole; a batch's statistics stay frozen."""
        names = [one.name for one in self.base.weights if not one.statistic]
        given = self.adapters.head
        last = names[-1].rpartition(".")[0]
        found = frozenset(
            name
            for name in names
            if (self._named(name, given) if given else name.rpartition(".")[0] == last)
        )
        if not found:
            raise self._none("head", given)
        return found

    @cached_property
    def adapted(self) -> tuple[Weight, ...]:
        """Weights of the base with an adapter. Raises DataError for patterns without a match."""
        rank, patterns = self.adapters.rank, self.adapters.targets
        if not rank:
            return ()
        found = [
            one
            for one in self.base.weights
            if len(one.shape) > 1 and one.name not in self.head and self._named(one.name, patterns)
        ]
        fewer = tuple(one for one in found if rank * sum(_matrix(one)) < math.prod(one.shape))
        if found and not fewer:
            what = f"no weight has more values than its adapter of rank {rank}"
            fix = "lower the rank, or train the model whole: leave adapters out"
            raise DataError(what, where="model.adapters.rank", fix=fix)
        if not fewer:
            raise self._none("targets", patterns)
        return fewer

    @cached_property
    def weights(self) -> tuple[Weight, ...]:
        rank, result = self.adapters.rank, list[Weight]()
        adapted = {one.name for one in self.adapted}
        for one in self.base.weights:
            if one.name in self.head:
                result.append(one)
            elif one.name in adapted:
                out, into = _matrix(one)
                result.append(Weight(f"{one.name}.{A}", (rank, into), fan_in=into))
                result.append(Weight(f"{one.name}.{B}", (out, rank)))
        return tuple(result)

    @cached_property
    def frozen(self) -> Mapping[str, NDArray[np.float32]]:
        return {n: array for n, array in self.whole.items() if n not in self.head}

    @cached_property
    def whole(self) -> Mapping[str, NDArray[np.float32]]:
        """Weights of the state_dict, without the head if it starts new."""
        head = tuple(sorted(self.head))
        if self.adapters.head_start == "new":
            return self.base.pretrained(head)
        try:
            return self.base.pretrained()
        except DataError as error:
            if self.packed is not None:
                self.base.pretrained(head)  # raises if other weights do not fit either
                fix = "begin the head anew: adapters: {head_start: new}"
                raise DataError(error.what, where=error.where, fix=fix) from error
            raise

    def pretrained(self, optional: Iterable[str] = ()) -> dict[str, NDArray[np.float32]]:
        return dict(self.whole)

    def initial(self) -> dict[str, NDArray[np.float32]]:
        chance, result = np.random.default_rng(START_SEED), dict[str, Any]()
        kept = self.adapters.head_start == "state_dict" and self.packed is not None
        whole: Mapping[str, Any] = self.whole if kept else {}
        for one in self.weights:
            if one.name in whole:
                result[one.name] = whole[one.name]
            elif one.fan_in and one.name not in self.head:
                drawn = chance.standard_normal(one.shape) / np.sqrt(one.fan_in)
                result[one.name] = drawn.astype(np.float32)
            else:
                result[one.name] = np.zeros(one.shape, np.float32)
        return result

    def merged(self, weights: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.float32]]:
        """Return weights of the base: W + (α/r)·B·A, W without an adapter, and the head."""
        result = dict[str, Any]()
        adapted = {one.name: one for one in self.adapted}
        for one in self.base.weights:
            if one.name in self.head:
                result[one.name] = np.asarray(weights[one.name], np.float32)
            elif one.name in adapted:
                a, b = (np.asarray(weights[f"{one.name}.{m}"], np.float32) for m in (A, B))
                result[one.name] = self._adapted(one, self.frozen[one.name], a, b)
            else:
                result[one.name] = self.frozen[one.name]
        return result

    def logits(self, weights: Tensors, x: Tensor, training: RandomBytes | None = None) -> Tensor:
        """Return the base's logits with merged weights; gradients reach only adapters and head."""
        frozen = {name: value.to(x.device) for name, value in self._tensors.items()}
        result = frozen | {name: weights[name] for name in self.head}
        for one in self.adapted:
            a, b = (weights[f"{one.name}.{m}"] for m in (A, B))
            result[one.name] = self._adapted(one, frozen[one.name], a, b)
        return self.base.logits(result, x, training)

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        """Frozen weights in torch, by `from_numpy`: other tensors would belong to a transform."""
        import torch

        return {name: torch.from_numpy(array) for name, array in self.frozen.items()}

    def prepare(self) -> None:
        self.base.prepare()
        _ = self._tensors

    def _adapted(self, weight: Weight, frozen: Any, a: Any, b: Any) -> Any:
        change = self.adapters.alpha / max(1, self.adapters.rank) * (b @ a)
        return frozen + (change.T if weight.turned else change).reshape(weight.shape)

    def _named(self, name: str, patterns: tuple[str, ...]) -> bool:
        return any(fnmatchcase(self.saved_name(name), pattern) for pattern in patterns)

    def _none(self, key: str, patterns: tuple[str, ...]) -> DataError:
        names = ", ".join(self.saved_name(one.name) for one in self.base.weights)
        what = f"{', '.join(patterns)} names no weight that could be one of them"
        return DataError(what, where=f"model.adapters.{key}", fix=f"the model has {names}")


def _matrix(weight: Weight) -> tuple[int, int]:
    """Return (out, in) of a weight as a matrix; the rows of a convolution are its filters."""
    first, rest = weight.shape[0], math.prod(weight.shape[1:])
    return (rest, first) if weight.turned else (first, rest)
