"""Public facts that a job gives a training method, besides the method's own parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from edgeveil.data.anomaly import learned_from
from edgeveil.errors import UsageError
from edgeveil.parts.features import FeatureMap, finite_records, valid_records
from edgeveil.parts.features.feature_map import PcaParameters
from edgeveil.parts.models.layers import Weight, value_count
from edgeveil.parts.models.network import Network
from edgeveil.parts.part import BlockPart, Keys
from edgeveil.parts.round import CloudMethod, DeviceMethod
from edgeveil.privacy.correlation import Correlation
from edgeveil.privacy.events import Unit

if TYPE_CHECKING:
    from edgeveil.data.records import Records
    from edgeveil.data.schema import DataSchema
    from edgeveil.parts.server_optimizers import ServerOptimizerParameters
    from edgeveil.parts.stage import BaseStage


@dataclass(frozen=True)
class MethodContext:
    """Public facts from which both halves of a method are built.

    `epsilon`, `delta` bound the training of one device over at most `max_participations` rounds.
    `nominal_records`: public divisor per device; `devices`: number expected per round.
    `projection`: federated PCA after the `features`. `network` is trained on the `features` if
    `mapped`; its updates pass the `stages`, in one segment if `whole`. `summed`: largest number of
    uploads in a masked sum, 0 without; `honest`: devices per sum that share the noise, 0 without.
    `correlation`: facts of noise that later rounds take back, of which `local_share` stays.
    `regression`: labels are numbers (`data.target`). `anomaly`: normal records are learned
    (`data.anomaly`). `local`: weights of the network that stay on the device. `weighted`: uploads
    weigh by the device's record count. `fleet`: devices enrolled, 0 if all take part. `server`: the
    cloud's optimiser. `unit`: what the noise hides, and whose part of a sum is bounded."""

    epsilon: float
    delta: float
    max_participations: int
    classes: int
    input_shape: tuple[int, ...]
    features: FeatureMap
    nominal_records: int
    devices: int
    projection: PcaParameters | None = None
    network: Network | None = None
    mapped: bool = False
    stages: tuple[BaseStage, ...] = ()
    whole: bool = False
    summed: int = 0
    honest: int = 0
    correlation: Correlation | None = None
    local_share: float = 0.0
    regression: bool = False
    anomaly: bool = False
    local: tuple[str, ...] = ()
    weighted: bool = False
    fleet: int = 0
    server: ServerOptimizerParameters | None = None
    unit: Unit = "record"

    @property
    def divisor(self) -> int:
        """The public divisor of a device's sums: about the number of units that it holds."""
        return 1 if self.unit == "device" else self.nominal_records

    def learned_from(self, records: Records) -> NDArray[np.bool_]:
        """Return a mask (n,) of records with finite values and a valid label, each judged alone."""
        if self.anomaly:
            return learned_from(records.y) & finite_records(records.x)
        return valid_records(records.x, records.y, self.classes)

    @property
    def feature_dimension(self) -> int:
        """D, the number of values of the public feature map."""
        return self.features.output_dim(self.input_shape)

    @property
    def dimension(self) -> int:
        """d, the number of features learned on: D, or the dimensions kept by the PCA."""
        if self.projection is None:
            return self.feature_dimension
        return self.projection.output_dim(self.feature_dimension)

    @property
    def kept(self) -> int | None:
        return None if self.projection is None else self.dimension


class MethodParameters(Keys):
    method: str
    rounds: int

    left_out: ClassVar[Mapping[str, Any]] = {}
    """Keys added later: the value meant by their absence from canonical bytes, where that differs
    from the default of a job file."""

    @property
    def bias(self) -> bool:
        return False

    @property
    def records_schema(self) -> DataSchema | None:
        """The schema of a method that names its records' columns itself."""
        return None

    @property
    def functions(self) -> tuple[str, ...]:
        """Installed functions that training calls, as `module:function`; owners must allow them."""
        return ()


@dataclass(frozen=True, kw_only=True)
class MethodPart(BlockPart):
    """Declaration of a training method; `device` and `cloud` build its halves.

    `learns_on`: `model` methods upload its change. `regression`, `anomaly`: supports numeric
    labels, or learning normal records. `summed`: can upload integers for masked sums; `shares`:
    also with shared noise. `counts`: uploads tell the device's record count. `personal`: devices
    keep weights of their own. `units`: whose part of a sum it can bound (`privacy.unit`). `refuses`
    yields (keys of the job, reason) against a job."""

    family: ClassVar[str] = "methods"
    key: ClassVar[str] = "train.method"
    what: ClassVar[str] = "method"
    tag: ClassVar[str] = "method"
    block: ClassVar[type[BaseModel]] = MethodParameters

    device: Callable[[Any, MethodContext], DeviceMethod]
    cloud: Callable[[Any, MethodContext], CloudMethod]
    learns_on: Literal["features", "model", "nothing"] = "features"
    regression: bool = False
    anomaly: bool = False
    summed: bool = False
    shares: bool = False
    counts: bool = False
    personal: bool = False
    units: tuple[Unit, ...] = ("record",)
    refuses: Callable[[Any, MethodContext], Iterable[tuple[tuple[str, ...], str]]] | None = None


def network_of(context: MethodContext) -> Network:
    if context.network is None:
        raise UsageError("this method trains a model", where="model", fix="add a model block")
    return context.network


def staying(parameters: Any, network: Network) -> tuple[str, ...]:
    """Return the weights that a method's `local` patterns, or `fedbn`, keep on the device."""
    patterns = getattr(parameters, "local", ...)
    chosen = () if patterns is ... else patterns
    norms = network.batch_norms if getattr(parameters, "method", "") == "fedbn" else ()
    return tuple(
        one.name
        for one in network.weights
        if one.name in norms or any(fnmatchcase(one.name, pattern) for pattern in chosen)
    )


def uploaded(context: MethodContext) -> tuple[Weight, ...]:
    """Return the weights that devices upload changes of: all but the `local` ones."""
    return tuple(one for one in network_of(context).weights if one.name not in context.local)


def size_of(context: MethodContext) -> int:
    return value_count(uploaded(context))
