"""A round at the cloud: whom it asks, what is opened, refused, added up and scored, in how much
memory."""

import random

import numpy as np
import pytest
import yaml
from round_kit import CloudRound, job, public_keys

from edgeveil.crypto.chunked import chunked_bytes
from edgeveil.data.records import Records
from edgeveil.errors import JobFailed, ProtocolError
from edgeveil.jobs import compile_job
from edgeveil.jobs.load import parse_plan
from edgeveil.jobs.plan import MOST_SUMMED, SOFTMAX
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.models.heads import bake
from edgeveil.privacy.sampler import SeededRandom
from edgeveil.protocol.cloud_job import BatchPart
from edgeveil.protocol.messages import RoundId
from edgeveil.protocol.sealed import ReleasePackage, encode_package, segment_mark
from edgeveil.protocol.transfer import describe
from edgeveil_cloud.broadcasts import (
    TooFewDevices,
    TooManyDevices,
    largest_broadcast,
    seal_round,
    select,
)
from edgeveil_cloud.commit_round import aggregate
from edgeveil_cloud.evaluation import Evaluation, clusters, mean_softmax
from edgeveil_cloud.round_report import model_card
from edgeveil_cloud.validate_batch import NORM_FACTOR, BatchSpool, validate_batch
from tests.kits.fleet import small_job
from tests.kits.memory_peak import peak_bytes

HEAD = "head.weight"
ROUND = CloudRound()
HONEST = ROUND.honest()


def values(opened, name):
    return sorted(float(array.ravel()[0]) for array in opened.arrays[name])


def refused(segment):
    """Why one more segment among honest ones, which stay, is not counted."""
    opened = ROUND.opened([[*HONEST[0], segment], HONEST[1]])
    assert (values(opened, HEAD)[:3], values(opened, SOFTMAX)) == ([1, 2, 3], [1, 2, 3])
    marks = {segment_mark(ROUND.secret.membership, s) for group in HONEST for s in group}
    assert marks <= set(opened.accepted)
    return opened.refused


FOREIGN = [CloudRound(**of) for of in ({"index": 4}, {"attempt": 2}, {"job_id": b"K" * 16}, {})]


def test_a_segment_of_elsewhere_altered_or_of_who_was_not_selected_is_not_for_this_round():
    """An unselected device knows the manifest and the round's key, not the tag in the package."""
    assert len(HONEST[1][0]) == len(HONEST[0][0])
    manifest, nine = ROUND.manifest, ROUND.array(0, 9)
    elsewhere = [of.segment(0, of.array(0, 9)) for of in FOREIGN]
    altered = [HONEST[1][0], bytes(len(HONEST[0][0])), HONEST[0][0][:-1] + b"\0"]
    tags = (bytes(32), manifest.commitment, manifest.package_digest)
    for one in (*elsewhere, *altered, *(ROUND.segment(0, nine, membership=tag) for tag in tags)):
        assert refused(one) == {"not_for_this_round": 1}


def test_counts_that_no_record_and_no_noise_make_are_refused():
    """Each by itself: of two uploads none is usual, and a sum of the largest would wrap around."""
    plan = compile_job(job(federated_evaluation={"epsilon": 1.0}, round={"min_batch": 1}))
    here = CloudRound(len(plan.all_rounds), plan=plan)
    (spec,) = here.context.segments
    assert (here.round.phase, spec.dtype, spec.bits) == ("evaluate", "int64", 0)
    most = spec.largest or 0
    assert 30 << plan.evaluation.event.grid_bits < most < 2**62
    given = [-most, most, most + 1, -most - 1, 2**63 - 1, -(2**63)]
    opened = here.opened([[here.segment(0, np.full(spec.shape, n, np.int64)) for n in given]])
    assert (opened.refused, values(opened, spec.name)) == ({"out_of_range": 4}, [-most, most])


def test_what_is_not_finite_padded_repeated_or_far_above_the_median_is_refused():
    for bad in (np.nan, np.inf, -np.inf):
        array = ROUND.array(0, 1.0)
        array[2, 1] = bad
        assert refused(ROUND.segment(0, array)) == {"not_finite": 1}
    spec, group = ROUND.plan.segments(ROUND.round)[0], ROUND.manifest.groups[0]
    assert group.padded_bytes > spec.byte_count
    smuggled = ROUND.array(0, 1.0).tobytes().ljust(group.padded_bytes - 1, b"\0") + b"!"
    assert refused(ROUND.segment(0, smuggled)) == {"bad_padding": 1}
    assert refused(HONEST[0][0]) == {"repeated_segment": 1}
    # With 1, 2, 3 and one large: the median is 2.5. The last's square is infinite in float32.
    for value in (2.5 * NORM_FACTOR * 1.001, 3e38):
        assert refused(ROUND.segment(0, ROUND.array(0, value))) == {"norm": 1}
    assert refused(ROUND.segment(0, ROUND.array(0, 2.5 * NORM_FACTOR * 0.999))) == {}


def test_devices_without_records_or_noise_make_no_other_upload_unusual():
    mixed = [ROUND.segment(0, ROUND.array(0, value)) for value in (0.0, 0.0, 0.0, 1.0)]
    assert ROUND.opened([mixed, HONEST[1]]).refused == {}


def test_a_group_with_more_segments_than_devices_selected_is_void():
    few = CloudRound(selected=3)
    heads, softmax = few.honest(4)
    opened = few.opened([heads, softmax[:3]])
    assert (list(opened.arrays[HEAD]), opened.refused) == ([], {"more_than_selected": 4})
    assert len(opened.arrays[SOFTMAX]) == 3  # the other group stands
    assert len(opened.accepted) == 3
    # Segments that do not count cannot void a group.
    opened = few.opened([[*heads[:3], few.segment(0, few.array(0, 9), bytes(32))], softmax[:3]])
    assert len(opened.arrays[HEAD]) == 3


@pytest.mark.parametrize("counts", [(), (3, 3, 0), (5, 3), (2**31, 3)])
def test_counts_that_do_not_fit_the_data_refuse_the_batch(counts):
    opened = ROUND.opened(HONEST, counts=counts)
    assert (opened.refused, opened.arrays, opened.accepted) == ({"malformed_batch": 1}, {}, [])


def test_inferences_do_not_count_as_uploads():
    opened = ROUND.opened([HONEST[0][:2], HONEST[1]])
    with pytest.raises(JobFailed):
        aggregate(ROUND.context, ROUND.state, opened)
    assert aggregate(ROUND.context, ROUND.state, ROUND.opened([HONEST[0], []]))[1] == 3


def chosen_of(plan, keys):
    return select(plan, {"": keys})[""]


def test_a_selection_has_the_asked_number_of_different_keys_or_is_refused():
    keys = public_keys(8)
    plan = compile_job(job(selection={"devices": 4, "over_select": 1.5}))
    chosen = {tuple(chosen_of(plan, keys)) for _ in range(20)}
    assert {len(set(c)) for c in chosen} == {6}
    assert all(set(c) <= set(keys) for c in chosen)
    assert len({frozenset(c) for c in chosen}) > 1
    assert sorted(chosen_of(compile_job(job()), keys)) == sorted(keys)
    for changes in ({"round": {"min_batch": 5}}, {"selection": {"min_devices": 5}}):
        with pytest.raises(TooFewDevices):
            chosen_of(compile_job(job(**changes)), keys[:4])


def test_no_more_devices_are_selected_than_a_sum_under_masks_has_room_for():
    """However many of them uploaded the most that they can, no sum of a cell would wrap around."""
    rule = {"name": "fedavg", "secure": True}
    everybody = compile_job(job(aggregation=rule, selection={"devices": "all"}))
    keys = [number.to_bytes(32, "big") for number in range(MOST_SUMMED + 1)]
    assert len(chosen_of(everybody, keys[:MOST_SUMMED])) == MOST_SUMMED
    with pytest.raises(TooManyDevices):
        chosen_of(everybody, keys)
    assert len(select(everybody, {"a": keys[:9000], "b": keys[9000:]})) == 2
    some = compile_job(job(aggregation=rule, selection={"devices": 9, "over_select": 1.25}))
    for plan in (everybody, some):
        assert len(chosen_of(plan, keys[:12])) <= plan.context.summed
        for round in plan.planned:
            for spec in plan.segments(round):
                if spec.bits and spec.name != SOFTMAX:
                    budget = plan.device.budget
                    largest = budget.largest(round.phase, plan.context.nominal_records)
                    assert plan.context.summed * largest < 2 ** (spec.bits - 1)
    assert len(chosen_of(compile_job(job(selection={"devices": "all"})), keys)) == len(keys)


UPDATE = "update"


def plan(rule, hidden=(4,)):
    return compile_job(
        job(
            features=(),
            model={"name": "mlp", "hidden": hidden},
            train={"method": "sgd", "rounds": 2},
            privacy={"epsilon": 4.0, "accept_unproven": True},
            proxy={"shuffle": "whole"},
            unsupervised={"every_rounds": 0},
            aggregation=rule,
        )
    )


def uploaded(of, values):
    at = CloudRound(index=1, plan=of)
    return at, at.opened([[at.segment(0, at.array(0, value)) for value in values]])


def moved(of, values, **options):
    at, opened = uploaded(of, values)
    state, uploads = aggregate(at.context, at.state, opened, **options)
    bias = next(name for name in state if name.endswith("bias"))
    return float(np.asarray(state[bias])[0] - np.asarray(at.state[bias])[0]), uploads


def test_the_jobs_rule_moves_the_model_from_the_global_weights():
    trimmed = {"name": "trimmed_mean", "share": 0.25}
    assert moved(plan(trimmed), [0.5, 0.5, 1.0, 40.0]) == (pytest.approx(0.75), 4)
    least = {"name": "min_divergence", "k": 1, "sampling": "top_k"}
    assert moved(plan(least), [-1.0, 0.0, 40.0]) == (0.0, 3)  # both others turn signs
    right = {0.25: 1, 0.5: 5, 1.0: 3}
    score = lambda segments: right[float(segments[UPDATE][0])]  # noqa: E731
    assert moved(plan(SCORED), list(right), random_bytes=SeededRandom(0), score=score)[0] == 0.5


def test_preparatory_sums_are_averaged_where_the_rule_is_for_updates():
    of = compile_job(
        job(
            features=({"name": "identity"}, {"name": "ldp_fpca", "keep": 0.5}),
            train={"method": "fm_paper", "rounds": 2},
            privacy={"epsilon": 4.0, "accept_unproven": True},
            aggregation={"name": "min_divergence", "k": 4},
        )
    )
    at = CloudRound(index=1, plan=of)
    (group,) = at.honest(3)
    assert at.round.number == 0
    assert aggregate(at.context, at.state, at.opened([group]))[1] == 3
    at = CloudRound(index=2, plan=of)
    with pytest.raises(TooFewDevices):
        aggregate(at.context, at.state, at.opened(at.honest(3)))


SCORED = {"name": "secprobe", "k": 1, "sampling": "top_k", "validation_records": 6}
RECORDS = Records(np.eye(4, dtype=np.float32)[np.arange(10) % 4], np.arange(10) % 3)
CUTS = slice(6), slice(6, 10)


def test_an_upload_is_scored_on_the_first_records_and_the_model_tested_on_the_others():
    of, plain = plan(SCORED), RoundContext.of(plan({"name": "fedavg"}), 1)
    at, _ = uploaded(of, [0.0])
    graph, evaluation = of.graph(), Evaluation(RECORDS)
    score = evaluation.score(at.context, graph, at.state)
    first, rest = (Evaluation(Records(RECORDS.x[cut], RECORDS.y[cut])) for cut in CUTS)
    for seed in range(5):
        update = np.random.default_rng(seed).normal(size=at.array(0, 0).shape).astype(np.float32)
        state = of.cloud.absorb(at.state, at.round, {UPDATE: update}, 1)
        expected = first.tested(plain, graph, state).accuracy
        assert score({UPDATE: update}) == pytest.approx(6 * expected)
        assert evaluation.tested(at.context, graph, state) == rest.tested(plain, graph, state)


DATA = random.Random(3).randbytes(100_000)
BLOB = describe(DATA, 4096)


PARTS = [BatchPart(BLOB.digest, k, DATA[k : k + 4096]) for k in range(0, len(DATA), 4096)]


def put(spool, parts):
    for part in parts:
        spool.put(part)
    return spool


def test_parts_in_any_order_and_twice_make_the_batch_and_no_others_do(tmp_path):
    spool = put(BatchSpool(tmp_path), random.Random(1).sample(PARTS * 2, k=len(PARTS) * 2))
    assert list(tmp_path.iterdir()) == []
    batch = spool.whole(BLOB)
    spool.drop()  # and a reader goes on
    assert len(batch) == len(DATA) and batch[5000:200_000] == DATA[5000:]
    altered, longer = BatchPart(BLOB.digest, 7, b"!"), BatchPart(BLOB.digest, len(DATA), b"!")
    for wanted in ([], PARTS[:3] + PARTS[4:], [*PARTS, altered], [*PARTS, longer]):
        with pytest.raises(ProtocolError, match="bad_digest"):
            put(BatchSpool(tmp_path), wanted).whole(BLOB)


PLAN = plan({"name": "fedavg"}, (1024, 1000))
MODEL_BYTES = sum(array.nbytes for array in PLAN.cloud.initial_state().values())


def test_a_round_is_sealed_beside_its_plaintext_alone_and_opened_beside_its_exact_sum():
    of, at = CloudRound(index=1, plan=PLAN, selected=6), RoundId(b"J" * 16, 1, 1)
    peak = peak_bytes(lambda: seal_round(of.context, of.state, public_keys(5), at, 1, 4096))
    assert peak < 2.4 * MODEL_BYTES  # tensors and plaintext, then plaintext and blob, which grows
    batch, data = of.batch([[of.segment(0, of.array(0, 1.0 + number)) for number in range(6)]])

    def commit():
        aggregate(of.context, of.state, validate_batch(of.context, of.secret, batch, data))

    # A sum is two float64 for each float32, four models; one upload is there sealed and opened.
    assert peak_bytes(commit) < 6.4 * MODEL_BYTES


def columns(names=("a",), classes=("a", "b")):
    label = {"column": "y", "classes": list(classes)}
    number = {"name": list(names), "number": [0, 1]}
    return {"schema": {"origin": "public", "label": label, "columns": [number]}}


@pytest.mark.parametrize(
    "data",
    [
        columns([f"column {number:05d} {'x' * 90}" for number in range(600)]),
        columns(classes=[f"cläss {k:05d}" for k in range(2500)]),
    ],
    ids=["columns", "classes"],
)
def test_no_release_is_larger_than_its_job_announced(data):
    """Its card names classes and columns: past 64 KiB the job was paid for and never ended."""
    plain = {
        "job": "large",
        "data": {"source": "table", "nominal_records": 150, "evaluation_share": 0.1, **data},
        "features": [{"name": "identity"}],
        "train": {"method": "fm", "rounds": 2},
        "privacy": {"epsilon": 2, "delta": 0.0001},
        "unsupervised": {"every_rounds": 0},
    }
    plan = parse_plan(yaml.safe_dump(plain))
    graph = plan.graph()
    announced = largest_broadcast(plan, graph)
    figures = {f"figure {k}": k / 7 for k in range(100)}
    onnx = bake(graph, plan.model_weights(plan.cloud.initial_state()), model_card(plan, figures))
    package = encode_package(ReleasePackage("j" * 64, onnx, "d" * 64, 1e9 / 7))
    sealed = chunked_bytes(len(package)) + plan.upload_bytes
    assert announced - (1 << 17) < sealed <= announced


def inferring(secure):
    fleet = small_job(
        unsupervised={"every_rounds": 1, "eval_type": "MEAN_SOFTMAX"},
        aggregation={"name": "fedavg", "secure": secure},
        selection={"devices": 5},
    )
    plan = compile_job(fleet)
    return RoundContext.of(plan, next(round.index for round in plan.planned if round.infer))


def test_the_mean_softmax_by_hand_is_that_of_single_uploads_and_of_sums():
    rows = np.zeros((3, 10))
    rows[0, 0], rows[1, 0], rows[2, 9] = 0.5, 1.0, 0.75
    alone = mean_softmax(inferring(secure=False), list(rows), 3)
    assert alone.mean == pytest.approx((0.5, *[0.0] * 8, 0.25))
    deviation = np.sqrt(2) * 2 / 20  # of Laplace noise for sensitivity 2 and ε = 20
    assert alone.noise_deviation == pytest.approx(deviation / np.sqrt(3), rel=1e-3)
    steps = (rows * 2**20).astype(np.int64)
    sums = [steps[:2].sum(axis=0), steps[2]]  # of two sets
    assert mean_softmax(inferring(secure=True), sums, 3) == alone
    assert clusters(inferring(secure=False), list(rows)) is None
