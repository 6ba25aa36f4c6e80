"""Knowledge transfer by noised votes (`pate`): teachers label a public set, a student learns it.

GNMax of Papernot et al. 2018 with its data-independent price. Each device trains a teacher, and
votes for one class of each record of a public, unlabelled set that is part of the job. The cloud
takes the largest noised sum of votes and trains the student on these labels.

**Theorem.** Votes on m records are a matrix (m, c) with at most one 1 in each row, so two of them
differ by at most √(2m) in L2 norm, for any teacher. With noise of σ their sum is
√(2m)/σ-Gaussian-DP for one record and for all records of a device (Dong, Roth, Su 2022, thm 2.7);
rounds compose by Σμ². Agreement of votes lowers no price: such prices depend on the data."""

from __future__ import annotations

import base64
import binascii
import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, model_validator

from edgeveil.data.records import Records, plain_numbers
from edgeveil.errors import DataError, ProtocolError
from edgeveil.parts.method_context import MethodContext, MethodParameters, MethodPart
from edgeveil.parts.methods.fm_sums import noised
from edgeveil.parts.models.heads import softmax
from edgeveil.parts.part import Keys, filled_from_file
from edgeveil.parts.round import (
    Answer,
    Array,
    CloudMethod,
    PlannedRound,
    SegmentSpec,
    Tensors,
    planned_rounds,
    required,
    summed_spec,
)
from edgeveil.parts.sources.arrays import npz_array
from edgeveil.parts.sources.digits import load_digits_split
from edgeveil.privacy.events import Event, as_single
from edgeveil.privacy.gaussian_mechanism import gaussian_event, meeting, shared_gaussian
from edgeveil.privacy.grid import Float64, Int64, row_norms
from edgeveil.privacy.sampler import RandomBytes, os_random
from edgeveil.subnormals import flushed

VOTES, ROUND = "votes", "round"
VOTE_BITS = 24
PUBLIC_BYTES = 36 << 10  # of the public set in a job, whose canonical bytes are at most 64 KiB
FILE_BYTES = 1 << 28  # of the array that it is taken from
DIGITS = "digits"
RIDGE = 0.003  # weight decay of teachers and student, on the mean loss
STEPS = 200  # of gradient descent of a teacher, and of the student
_RADIUS = 0.5  # of centred features, as in the head's graph
_UNSET_RECORDS = 24  # without a public set; such a job is refused


class PublicSet(Keys):
    """Public, unlabelled records for the vote: a file in a job file, the records in a sent job."""

    file: str | None = Field(default=None, min_length=1, max_length=4096, exclude=True)
    """Path of an NPZ file with an array `x`, from the job file's folder; `digits`: test digits."""
    records: int = Field(default=48, ge=1, le=PUBLIC_BYTES)
    """How many of its first records are labelled; noise grows as the square root."""
    input_form: tuple[Annotated[int, Field(ge=1, le=PUBLIC_BYTES)], ...] = Field(
        default=(), max_length=4, examples=[[64]]
    )
    """Shape of one record; filled in from `file`."""
    dtype: Literal["uint8", "float32"] = "uint8"
    """uint8 if all values are integers in 0 to 255; filled in from `file`."""
    rows: str = Field(default="", max_length=PUBLIC_BYTES * 4 // 3 + 4)
    """The records, base64, little-endian; filled in from `file`."""

    @model_validator(mode="before")
    @classmethod
    def _from_file(cls, given: Any, info: ValidationInfo) -> Any:
        def facts(given: dict[str, Any], folder: Path) -> dict[str, Any]:
            count = given.get("records", cls.model_fields["records"].default)
            if not isinstance(count, int) or count < 1:
                return {"file": None}  # refused by the field's own check
            return _facts(_read(given["file"], folder), count)

        return filled_from_file(given, info, facts)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not (self.rows and self.input_form):
            raise ValueError("names no records; add `file: PATH`")
        size = self.records * math.prod(self.input_form) * np.dtype(self.dtype).itemsize
        try:
            raw = base64.b64decode(self.rows, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("rows: is no base64") from None
        if len(raw) != size:
            raise ValueError(f"rows: {len(raw)} bytes instead of {size}")
        if not np.isfinite(self.values()).all():
            raise ValueError("rows: some values are not finite")
        return self

    def values(self) -> NDArray[np.float32]:
        raw = np.frombuffer(base64.b64decode(self.rows), np.dtype(self.dtype).newbyteorder("<"))
        return raw.reshape(self.records, *self.input_form).astype(np.float32)


def _read(file: str, folder: Path) -> NDArray[Any]:
    if file == DIGITS:
        return load_digits_split()[1].x
    path = folder / Path(file).expanduser()
    if not path.is_file():
        raise DataError("no such file", where=str(path), fix="name an NPZ file with an array x")
    return plain_numbers(npz_array(path, "x", FILE_BYTES))


def _facts(x: NDArray[Any], records: int) -> dict[str, Any]:
    if x.ndim < 2 or len(x) < records:
        what = f"has the shape {list(x.shape)}, for {records} records"
        raise DataError(what, fix="name an array x of as many rows, or fewer records")
    rows = x[:records]
    with np.errstate(invalid="ignore"):
        small = bool(((rows >= 0) & (rows <= 255) & (rows == np.floor(rows))).all())
    dtype = "uint8" if small else "float32"
    room = PUBLIC_BYTES // (math.prod(rows.shape[1:]) * np.dtype(dtype).itemsize)
    if records > room:
        raise DataError(
            f"{records} records as {dtype} take more than the {PUBLIC_BYTES} bytes that travel in "
            "a job",
            fix=f"name at most {room} records" if room else "use smaller records",
        )
    raw = rows.astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    return {
        "input_form": tuple(rows.shape[1:]),
        "dtype": dtype,
        "rows": base64.b64encode(raw).decode(),
    }


class PateParameters(MethodParameters):
    """The `train` block of a job with `method: pate`."""

    method: Literal["pate"] = "pate"
    """Teachers on devices vote on a public set under noise; a student learns the labels."""
    rounds: int = Field(default=1, ge=1, le=1000)
    """Rounds, among which the public records are divided; one is the least work."""
    public: PublicSet | None = None
    """The public, unlabelled records; required."""

    @model_validator(mode="after")
    def _one_a_round(self) -> Self:
        if self.rounds > self.queries:
            raise ValueError(f"rounds: {self.rounds} rounds share {self.queries} public records")
        return self

    @property
    def queries(self) -> int:
        """m, the number of public records labelled in the whole job."""
        return self.public.records if self.public else _UNSET_RECORDS

    @property
    def per_round(self) -> int:
        """Rows of votes in a round; some of the last round may be unused."""
        return -(-self.queries // self.rounds)


def refusals(
    parameters: PateParameters, context: MethodContext
) -> list[tuple[tuple[str, ...], str]]:
    found: list[tuple[tuple[str, ...], str]] = []
    public = parameters.public
    if public is None:
        why = "devices vote on a public set; add `public: {file: records.npz}`"
        found.append((("train.public", "train.method"), why))
    elif public.input_form != context.input_shape:
        form, shape = list(public.input_form), list(context.input_shape)
        why = f"public records have the shape {form}, devices' records {shape}; they must be equal"
        found.append((("train.public", "data.input_shape"), why))
    if context.projection is not None:
        why = (
            "teachers and student learn on public features, and a PCA of devices' records is not "
            "one; leave it out, or use method fm"
        )
        found.append((("features", "train.method"), why))
    return found


def vote_event(parameters: PateParameters, context: MethodContext) -> Event:
    """Return one round's event; all together are (ε, δ)-DP. Raises PrivacyError if impossible."""
    m, times = parameters.per_round, min(context.max_participations, parameters.rounds)
    sensitivity = math.isqrt((2 * m << 2 * VOTE_BITS) - 1) + 1  # √(2m) votes, rounded up
    one = meeting(
        lambda mu: gaussian_event(
            "votes on public records", sensitivity, mu, m * context.classes, grid_bits=VOTE_BITS
        ),
        context.epsilon,
        context.delta,
        times,
    )
    return shared_gaussian(one, context.honest)


def head_weights(z: Float64, labels: NDArray[np.int64], classes: int) -> Float64:
    """Return W (d, c) near the minimum of the mean cross-entropy of z (n, d) plus RIDGE/2·‖W‖².

    Nesterov's method from 0, step 1/(½ + RIDGE) for ‖z‖ <= 1 (Böhning 1992); 0 without records."""
    weight: Float64 = np.zeros((z.shape[1], classes))
    if not len(z):
        return weight
    onehot = np.eye(classes)[labels]
    smooth = 0.5 + RIDGE
    root = math.sqrt(RIDGE / smooth)
    momentum, ahead = (1 - root) / (1 + root), weight
    for _ in range(STEPS):
        slope = z.T @ (softmax(z @ ahead) - onehot) / len(z) + RIDGE * ahead
        new = ahead - slope / smooth
        ahead, weight = new + momentum * (new - weight), new
    return weight


class PublicFeatures:
    def __init__(self, parameters: PateParameters, context: MethodContext) -> None:
        self.context = context
        if parameters.public is not None:
            x = parameters.public.values()
        else:  # synthetic and fixed
            shape = (parameters.queries, *context.input_shape)
            x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        phi = context.features(x)
        self.centre: NDArray[np.float32] = phi.mean(axis=0).astype(np.float32)
        self.z = self.bounded(phi)

    def bounded(self, phi: Float64) -> Float64:
        """Return (φ - centre)/max(‖φ - centre‖, radius), as in the head's graph."""
        centred = phi - self.centre.astype(np.float64)
        result: Float64 = centred / np.maximum(row_norms(centred), _RADIUS)[:, None]
        return result


def rows_of(round: PlannedRound, parameters: PateParameters) -> slice:
    m = parameters.per_round
    return slice((round.number - 1) * m, min(round.number * m, parameters.queries))


class PateDevice:
    def __init__(self, parameters: PateParameters, context: MethodContext) -> None:
        self.parameters, self.context = parameters, context

    def price(self, round: PlannedRound) -> tuple[Event, ...]:
        return (vote_event(self.parameters, self.context),)

    @flushed()
    def answer(
        self,
        round: PlannedRound,
        tensors: Tensors,
        records: Records,
        random_bytes: RandomBytes = os_random,
        processor: str = "auto",
    ) -> Answer:
        """Return `votes` (per_round, c): noised integers in steps if summed, else float32."""
        if int(required(tensors, ROUND, (1,), "int32")[0]) != round.number:
            raise ProtocolError("bad_package", f"tensor '{ROUND}' is not {round.number}")
        event = vote_event(self.parameters, self.context)
        total = self.votes(round, records) << VOTE_BITS
        result = noised(total, event, random_bytes)
        if self.context.summed:
            return Answer({VOTES: result}, (event,))
        return Answer({VOTES: (result * 2.0**-VOTE_BITS).astype(np.float32)}, (event,))

    @flushed()
    def votes(self, round: PlannedRound, records: Records) -> Int64:
        """Return one-hot rows (per_round, c) before noise, which never leave the device."""
        p, s = self.parameters, self.context
        ballot = np.zeros((p.per_round, s.classes), np.int64)
        mask = s.learned_from(records)
        if not mask.any():
            return ballot
        public = PublicFeatures(p, s)
        z = public.bounded(s.features(records.x[mask]))
        labels, asked = records.y[mask], public.z[rows_of(round, p)]
        chosen = (asked @ head_weights(z, labels, s.classes)).argmax(axis=1)
        ballot[np.arange(len(chosen)), chosen] = 1
        return ballot


class PateCloud(CloudMethod):
    def __init__(self, parameters: PateParameters, context: MethodContext) -> None:
        self.parameters, self.context = parameters, context

    def plan(self) -> tuple[PlannedRound, ...]:
        return planned_rounds((), self.parameters.rounds)

    def segments(self, round: PlannedRound) -> tuple[SegmentSpec, ...]:
        """Return `votes` (per_round, c): float32, or integers up to a vote + 12 σ of one device."""
        shape = (self.parameters.per_round, self.context.classes)
        if not self.context.summed:
            return (SegmentSpec(VOTES, shape, "float32"),)
        own: Any = as_single(vote_event(self.parameters, self.context))
        largest = (1 << VOTE_BITS) + 12 * (math.isqrt(own.sigma_squared) + 1)
        return (summed_spec(VOTES, shape, largest, self.context.summed),)

    def initial_state(self) -> dict[str, Array]:
        """Return `labels` (m,) int64, -1 for a public record without a label."""
        return {"labels": np.full(self.parameters.queries, -1, np.int64)}

    def package(self, state: Tensors, round: PlannedRound) -> dict[str, Array]:
        return {ROUND: np.array([round.number], np.int32)}

    def absorb(
        self, state: Tensors, round: PlannedRound, mean: Tensors, uploads: int
    ) -> dict[str, Array]:
        """Label the round's records by the noisy argmax, the first on a tie."""
        labels, rows = np.array(state["labels"], np.int64), rows_of(round, self.parameters)
        votes = np.nan_to_num(mean[VOTES].astype(np.float64))
        labels[rows] = votes[: rows.stop - rows.start].argmax(axis=1)
        return {"labels": labels}

    @flushed()
    def model(self, state: Tensors) -> dict[str, Array]:
        public = PublicFeatures(self.parameters, self.context)
        labels = np.asarray(state["labels"], np.int64)
        known = labels >= 0
        weight = head_weights(public.z[known], labels[known], self.context.classes)
        return {
            "centre": public.centre,
            "radius": np.array([_RADIUS], np.float32),
            "weight": weight.astype(np.float32),
        }


PART = MethodPart(
    parameters=PateParameters,
    settled={"teacher": None, "ridge": RIDGE, "steps": STEPS},
    device=PateDevice,
    cloud=PateCloud,
    source="Papernot et al. 2018, GNMax with its data-independent price",
    needs="features and a public set",
    reveals="noised votes on public records",
    privacy="proven",
    example="train: {method: pate, rounds: 1}",
    summed=True,
    shares=True,
    refuses=refusals,
)
