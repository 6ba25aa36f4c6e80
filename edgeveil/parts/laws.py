"""Laws of every family of parts, checked on one part by `edgeveil methods check NAME`.

A law runs the part built from its `example` and returns the fault found, or "". The contract tests
run the same laws on all built-in parts."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import ValidationError

from edgeveil.config.data import Partition
from edgeveil.data.records import Records
from edgeveil.errors import OF_OTHERS_CODE, DataError
from edgeveil.parts.aggregation import AggregationRule, Uploads
from edgeveil.parts.features import FeatureMap, Identity, IdentityParameters
from edgeveil.parts.method_context import staying
from edgeveil.parts.methods import MethodContext
from edgeveil.parts.models import Network
from edgeveil.parts.models.heads import no_threshold
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.parts.models.mlp import build as build_mlp
from edgeveil.parts.part import BlockPart, Part
from edgeveil.parts.partitions import PartitionPart
from edgeveil.parts.round import TRAIN, Aim, Answer, PlannedRound
from edgeveil.parts.sources import Origin, SourcePart
from edgeveil.parts.stage import BaseStage, Task
from edgeveil.privacy.sampler import SeededRandom
from edgeveil.units import byte_text

UPLOADS = 11
PICTURE, CLASSES = (8, 8), 3
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Verdict:
    """Result of one law; `wrong` describes the violation, "" if none."""

    law: str
    wrong: str


def check(part: Part) -> list[Verdict]:
    """Return the verdicts of the laws of the part's family, or of an invalid example alone."""
    if isinstance(part, BlockPart) and (wrong := its_example_is_one_of_its_blocks(part)):
        return [Verdict("its example is one of its blocks", wrong)]
    found = []
    for law in LAWS.get(part.family, ()):
        try:
            wrong = law(part)
        except OF_OTHERS_CODE as error:  # a plug-in may raise anything
            wrong = f"{type(error).__name__}: {error}"
        found.append(Verdict(law.__name__.replace("_", " "), wrong))
    return found


def example_of(part: BlockPart) -> Any:
    value: Any = yaml.safe_load(part.example)
    for step in part.key.removesuffix(".method").split("."):
        value = value[step]
    block = value[-1] if isinstance(value, list) else value
    return part.parameters(**block)


def its_example_is_one_of_its_blocks(part: BlockPart) -> str:
    try:
        example_of(part)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "the block"
        why = f"{key}: {first['msg']}"
    except yaml.YAMLError:
        why = "that is no YAML"
    except OF_OTHERS_CODE:  # not a block, or not of this family
        why = f"it holds no block under '{part.key.removesuffix('.method')}'"
    else:
        return ""
    return f"its example is `{' '.join(str(part.example).split())}`, but {why}; correct it"


# Aggregation rules.


class Opened(Sequence[NDArray[np.float32]]):
    """Constant arrays, created anew at each access."""

    def __init__(self, count: int, size: int) -> None:
        self.length, self.size = count, size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return np.full(self.size, index % 7, np.float32)


def _rule(part: Any) -> tuple[AggregationRule, int]:
    rule: AggregationRule = part.rule(example_of(part))
    return rule, max(UPLOADS, rule.least + 1)


def _combined(rule: AggregationRule, arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    weights = np.random.default_rng(0).normal(size=np.asarray(arrays[0]).shape).astype(np.float32)
    found = rule.combine(
        Uploads(
            {"layer": arrays},
            Aim({"layer": weights}, change=True),
            SeededRandom(0),
            lambda one: int(np.clip(100 + 25 * float(one["layer"].ravel()[0]), 0, 200)),
        )
    )
    if list(found) != ["layer"] or found["layer"].dtype != np.float64:
        raise ValueError("the result is not one float64 array a segment")
    return found["layer"]


def _uploads(count: int) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    return [(1.6**k / 5 * rng.normal(size=(3, 50))).astype(np.float32) for k in range(count)]


def the_order_of_arrival_changes_nothing(part: Any) -> str:
    """Require bit-identical results: otherwise the cloud learns something about the order."""
    rule, count = _rule(part)
    arrays = _uploads(count)
    wanted = _combined(rule, arrays)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(count)
        if not np.array_equal(_combined(_rule(part)[0], [arrays[i] for i in order]), wanted):
            return "another order of the uploads gives another result"
    return ""


def the_result_lies_between_the_uploads(part: Any) -> str:
    rule, count = _rule(part)
    arrays = _uploads(count)
    found = _combined(rule, arrays)
    if found.shape != arrays[0].shape:
        return f"the result has shape {found.shape}, not {arrays[0].shape}"
    inside = (found >= np.min(arrays, axis=0)).all() and (found <= np.max(arrays, axis=0)).all()
    return "" if inside else "the result goes beyond every upload"


def it_works_with_the_fewest_uploads_it_asks_for(part: Any) -> str:
    rule, _ = _rule(part)
    found = _combined(rule, _uploads(rule.least))
    return "" if np.isfinite(found).all() else "the result is not finite"


def it_counts_no_more_uploads_than_there_are(part: Any) -> str:
    rule, _ = _rule(part)
    wrong = [n for n in range(rule.least, 40) if not 1 <= rule.counted(n) <= n]
    return f"counted({wrong[0]}) is {rule.counted(wrong[0])}" if wrong else ""


def the_largest_numbers_stay_finite(part: Any) -> str:
    rule, count = _rule(part)
    arrays = [np.full((3, 50), sign * _LARGEST, np.float32) for sign in (1, -1)] * count
    return "" if np.isfinite(_combined(rule, arrays)).all() else "the result is not finite"


def a_batch_is_never_in_memory_as_a_whole(part: Any) -> str:
    rule, _ = _rule(part)
    count, size = max(40, rule.least), 1 << 21
    whole = count * 4 * size
    tracemalloc.start()
    try:
        _combined(rule, Opened(count, size))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return "" if peak < 0.8 * whole else f"{byte_text(peak)} for uploads of {byte_text(whole)}"


# Feature maps.


def _map(part: Any) -> FeatureMap | None:
    return None if part.build is None else part.build(example_of(part), {})


def _pictures(count: int) -> NDArray[np.float32]:
    whole = np.random.default_rng(0).integers(0, 17, (count, *PICTURE))
    return whole.astype(np.float32)


def features_are_finite_and_of_norm_at_most_one(part: Any) -> str:
    if (phi := _map(part)) is None:
        return ""
    x = _pictures(6)
    x[0], x[1], x[2, 0, 0], x[3, 0, 0] = _LARGEST, -_LARGEST, np.nan, np.inf
    found = phi(x)
    if found.shape != (6, phi.output_dim(PICTURE)):
        return f"features have shape {found.shape}, not (6, {phi.output_dim(PICTURE)})"
    if not np.isfinite(found).all() or (np.linalg.norm(found, axis=1) > 1 + 1e-12).any():
        return "a record has features beyond norm 1, or not finite"
    return "features of a record with NaN are not zero" if found[2:4].any() else ""


def a_records_features_do_not_depend_on_the_batch(part: Any) -> str:
    """Require bit-identical features: otherwise one more record changes those of others."""
    if (phi := _map(part)) is None:
        return ""
    x = _pictures(130)
    together = phi(x)
    for at in (0, 1, 63, 64, 129):
        if not np.array_equal(phi(x[at : at + 1])[0], together[at]):
            return f"record {at} has other features in a batch of 1 than in one of {len(x)}"
    return "" if np.array_equal(phi(x[::-1]), together[::-1]) else "the order of records matters"


def the_graph_gives_what_the_map_gives(part: Any) -> str:
    phi = _map(part)
    return "" if phi is None else graph_fault(phi, _pictures(5))


def graph_fault(phi: FeatureMap, x: NDArray[np.float32], atol: float = 1e-5) -> str:
    from edgeveil.evaluation.graph_check import check_graph
    from edgeveil.evaluation.onnx_session import open_session, run_session
    from edgeveil.parts.features.feature_map import NodeList

    nodes, shape = NodeList(), x.shape[1:]
    output = phi.onnx_nodes(nodes, "x", shape)
    outputs = {output: ("N", phi.output_dim(shape))}
    raw = nodes.model("map", {"x": ("N", *shape)}, outputs)
    check_graph(raw)
    found = run_session(open_session(raw), output, {"x": x})
    return "" if np.allclose(found, phi(x), atol=atol) else "the graph gives something else"


# Methods, and update stages.


def _network() -> Network:
    return build_mlp(NetworkParameters(hidden=(4,)), (4,), CLASSES)


def _context(**changes: Any) -> MethodContext:
    return MethodContext(
        epsilon=8.0,
        delta=1e-5,
        max_participations=2,
        classes=CLASSES,
        input_shape=(4,),
        features=Identity(IdentityParameters()),
        nominal_records=50,
        devices=5,
        **changes,
    )


def _records(count: int) -> Records:
    rng = np.random.default_rng(0)
    return Records(rng.normal(size=(count, 4)).astype(np.float32), np.arange(count) % CLASSES)


def _invalid_records() -> Records:
    kept = _records(8)
    x, y = kept.x.copy(), kept.y.copy()
    x[0], x[1], x[2], y[3], y[4] = np.nan, _LARGEST, -_LARGEST, -1, 99
    return Records(x, y)


def _played(part: Any, records: Records) -> Iterator[tuple[Any, PlannedRound, Answer]]:
    """Run a short job with one device and yield the cloud half, each round and its answer."""
    network = _network() if part.learns_on == "model" else None
    parameters = part.parameters(**{**example_of(part).model_dump(), "rounds": 2})
    local = () if network is None else staying(parameters, network)
    context = _context(network=network, anomaly=part.anomaly, local=local)
    device, cloud = part.device(parameters, context), part.cloud(parameters, context)
    state = cloud.initial_state()
    for round in cloud.plan():
        price = device.price(round)
        package = cloud.package(state, round)
        answer = device.answer(round, package, records, SeededRandom(0), "cpu")
        if answer.events != price:
            raise ValueError(f"the answer to {round.label} costs {answer.events}, not {price}")
        yield cloud, round, answer
        mean = {name: np.asarray(value, np.float64) for name, value in answer.segments.items()}
        state = cloud.absorb(state, round, mean, 1)
    weights = cloud.model(state)
    if not all(np.isfinite(value).all() for value in weights.values()):
        raise ValueError("the model is not finite")


def the_plan_counts_its_rounds(part: Any) -> str:
    plan = [round for _, round, _ in _played(part, _records(8))]
    rounds = [round.number for round in plan if round.phase == TRAIN]
    if [round.index for round in plan] != list(range(1, len(plan) + 1)):
        return "rounds are not counted from 1"
    return "" if rounds == [1, 2] else f"two training rounds are numbered {rounds}"


def whatever_the_records_an_answer_has_its_public_form_and_price(part: Any) -> str:
    for records in (_records(8), _records(0), _invalid_records()):
        for cloud, round, answer in _played(part, records):
            wanted = {one.name: (one.shape, one.dtype) for one in cloud.segments(round)}
            found = {n: (v.shape, str(v.dtype)) for n, v in answer.segments.items()}
            if found != wanted:
                return f"{round.label} of {len(records)} records has {found}, not {wanted}"
            if not all(np.isfinite(value).all() for value in answer.segments.values()):
                return f"{round.label} of {len(records)} records is not finite"
    return ""


def one_stream_of_chance_gives_one_answer(part: Any) -> str:
    """Require determinism: a repeated answer must not draw fresh noise."""
    first, second = ([a.segments for _, _, a in _played(part, _records(8))] for _ in range(2))
    same = all(
        np.array_equal(one[name], other[name])
        for one, other in zip(first, second, strict=True)
        for name in one
    )
    return "" if same else "the same question and chance give two answers"


def _staged(part: Any, records: Records, scale: float) -> tuple[BaseStage, dict[str, Any], Any]:
    network = _network()
    stage = part.build(example_of(part), _context(network=network))
    rng = np.random.default_rng(0)
    update = {
        one.name: (scale * rng.normal(size=one.shape)).astype(np.float32) for one in network.weights
    }
    weights = network.initial()
    task = Task(PlannedRound(1, TRAIN, 1), network, weights, records, {}, SeededRandom(0), "cpu")
    start = stage.start(task)
    if start is not None and {n: v.shape for n, v in start.items()} != _shapes(weights):
        raise ValueError("training would start from weights of another form")
    return stage, update, stage.apply(task, dict(update))


def _shapes(arrays: Any) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in arrays.items()}


def an_update_keeps_its_form(part: Any) -> str:
    for records, scale in ((8, 0.1), (0, 0.1), (8, 0.0), (8, 1e38)):
        _, given, found = _staged(part, _records(records), scale)
        if _shapes(found) != _shapes(given):
            return f"weights of {_shapes(found)} for {_shapes(given)}"
        for name, value in found.items():
            if value.dtype != np.float32 or not np.isfinite(value).all():
                return f"'{name}' is not float32, or not finite"
    return ""


def what_protects_has_a_price(part: Any) -> str:
    stage, _, _ = _staged(part, _records(8), 0.1)
    return "" if bool(stage.price(PlannedRound(1, TRAIN, 1))) == stage.protects else "they differ"


# Models.


def _built(part: Any) -> tuple[Network, tuple[int, ...]]:
    for shape in ((3, 32, 32), (1, 28, 28), (64,), (4,)):
        try:
            network: Network = part.build(example_of(part), shape, CLASSES)
            network.weights  # noqa: B018 - shapes are checked here
        except DataError:
            continue
        return network, shape
    raise ValueError("takes neither pictures nor rows of numbers")


def weights_are_named_once_and_begin_finite(part: Any) -> str:
    network, _ = _built(part)
    names = [weight.name for weight in network.weights]
    first = network.initial()
    if len(set(names)) != len(names) or list(first) != names:
        return "weights share a name, or first weights have others"
    wrong = [w.name for w in network.weights if first[w.name].shape != w.shape]
    finite = all(np.isfinite(value).all() for value in first.values())
    return f"'{wrong[0]}' begins in another shape" if wrong else "" if finite else "not finite"


def the_graph_answers_for_each_record_alone(part: Any) -> str:
    from edgeveil.evaluation.graph_check import check_graph
    from edgeveil.evaluation.onnx_session import SCORE, OnnxModel

    network, shape = _built(part)
    raw = network.graph()
    check_graph(raw)
    graph = OnnxModel(raw)
    weights = {**network.initial(), **(no_threshold() if part.anomaly else {})}
    x = np.random.default_rng(0).random((3, *shape), np.float32)
    together = graph.answers(x, weights)
    alone = np.concatenate([graph.answers(x[k : k + 1], weights) for k in range(3)])
    if part.anomaly:
        if graph.output != SCORE or together.shape != (3, 1) or not (together >= 0).all():
            return "its output is not a score"
    elif together.shape != (3, CLASSES) or not np.allclose(together.sum(axis=1), 1, atol=1e-4):
        return "its output is not a probability of each class"
    return "" if np.allclose(together, alone, atol=1e-4) else "records of a batch mix"


# Sources and partitions.


def without_its_files_it_is_refused_by_name(part: SourcePart) -> str:
    if not part.place:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        for path in (None, Path(folder) / "gone"):
            try:
                part.read(Origin(path=path))
            except (DataError, FileNotFoundError):
                continue
            return f"reads records of path {path}"
    return ""


def reading_twice_gives_the_same_rows(part: SourcePart) -> str:
    if part.place or part.name in ("python", "memory"):
        return ""
    one, other = part.read(Origin()), part.read(Origin())
    if one.x.dtype != np.float32 or one.y.dtype != np.int64 or len(one.x) != len(one.y):
        return "records are not x float32 and y int64 of one length"
    same = np.array_equal(one.x, other.x, equal_nan=True) and np.array_equal(one.y, other.y)
    return "" if same else "two readings differ"


def each_record_is_dealt_once_and_by_the_seed(part: PartitionPart) -> str:
    y = np.arange(200) % 5
    rule = Partition.model_construct(kind=part.name)
    shares, again = (part.deal(y, 7, rule, 1) for _ in range(2))
    if len(shares) != 7 or sorted(np.concatenate(shares).tolist()) != list(range(200)):
        return "some record has no device, or two"
    same = all(np.array_equal(a, b) for a, b in zip(shares, again, strict=True))
    return "" if same else "one seed deals in two ways"


def one_own_record_more_moves_no_other(part: PartitionPart) -> str:
    words = np.random.default_rng(0).integers(0, 2**63, 200).astype(np.uint64) * np.uint64(2)
    y, rule = np.arange(200) % 5, Partition.model_construct(kind=part.name)
    whole = part.place(words, y, 7, rule, 1, 5)
    if whole.shape != (200,) or whole.min() < 0 or whole.max() >= 7:
        return "some record has no device"
    for index in range(0, 200, 23):
        rest = part.place(np.delete(words, index), np.delete(y, index), 7, rule, 1, 5)
        if not np.array_equal(rest, np.delete(whole, index)):
            return f"without record {index} others have other devices"
    return ""


LAWS: dict[str, tuple[Callable[[Any], str], ...]] = {
    "aggregation": (
        the_order_of_arrival_changes_nothing,
        the_result_lies_between_the_uploads,
        it_works_with_the_fewest_uploads_it_asks_for,
        it_counts_no_more_uploads_than_there_are,
        the_largest_numbers_stay_finite,
        a_batch_is_never_in_memory_as_a_whole,
    ),
    "features": (
        features_are_finite_and_of_norm_at_most_one,
        a_records_features_do_not_depend_on_the_batch,
        the_graph_gives_what_the_map_gives,
    ),
    "methods": (
        the_plan_counts_its_rounds,
        whatever_the_records_an_answer_has_its_public_form_and_price,
        one_stream_of_chance_gives_one_answer,
    ),
    "stages": (an_update_keeps_its_form, what_protects_has_a_price),
    "models": (weights_are_named_once_and_begin_finite, the_graph_answers_for_each_record_alone),
    "sources": (without_its_files_it_is_refused_by_name, reading_twice_gives_the_same_rows),
    "partitions": (each_record_is_dealt_once_and_by_the_seed, one_own_record_more_moves_no_other),
}
