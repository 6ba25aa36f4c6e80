"""A batch is opened with suspicion: what is counted, what is refused, and why."""

import numpy as np
import pytest
from round_kit import CENTRE, TRAIN, CloudRound, job, public_keys

from edgeveil.errors import JobFailed
from edgeveil.jobs import compile_job
from edgeveil.jobs.plan import MOST_SUMMED, SOFTMAX
from edgeveil.protocol.sealed import segment_mark
from edgeveil_cloud.broadcasts import TooManyDevices, select
from edgeveil_cloud.commit_round import aggregate
from edgeveil_cloud.open_segments import RoundSecret
from edgeveil_cloud.validate_batch import NORM_FACTOR

HEAD = "head.weight"
ROUND = CloudRound()
HONEST = ROUND.honest()


def values(opened, name):
    return sorted(float(array.ravel()[0]) for array in opened.arrays[name])


def test_an_honest_batch_is_opened_whole():
    opened = ROUND.opened(HONEST)
    assert (values(opened, HEAD), values(opened, SOFTMAX)) == ([1, 2, 3], [1, 2, 3])
    assert [a.shape for a in opened.arrays[HEAD]] == [(5, 3)] * 3
    assert [a.dtype.str for a in opened.arrays[HEAD]] == ["<f4"] * 3
    assert not opened.refused
    hashes = {segment_mark(ROUND.secret.membership, s) for group in HONEST for s in group}
    assert set(opened.accepted) == hashes
    assert len(opened.accepted) == 6


def spoilt(segment):
    """What becomes of one more segment among honest heads."""
    opened = ROUND.opened([[*HONEST[0], segment], HONEST[1]])
    return opened, values(opened, HEAD)


@pytest.mark.parametrize(
    "other", [{"index": TRAIN + 1}, {"attempt": 2}, {"job_id": b"K" * 16}, {}], ids=str
)
def test_a_segment_of_elsewhere_is_not_for_this_round(other):
    where = CloudRound(**other)  # of the same round it has another key
    opened, kept = spoilt(where.segment(0, where.array(0, 9)))
    assert (opened.refused, kept) == ({"not_for_this_round": 1}, [1, 2, 3])


def test_an_unselected_device_cannot_be_counted():
    """It knows the manifest and the round's key, and not the tag in the package."""
    for tag in (bytes(32), ROUND.manifest.commitment, ROUND.manifest.package_digest):
        opened, kept = spoilt(ROUND.segment(0, ROUND.array(0, 9), membership=tag))
        assert (opened.refused, kept) == ({"not_for_this_round": 1}, [1, 2, 3])


def test_a_segment_of_another_group_or_altered_is_refused():
    assert len(HONEST[1][0]) == len(HONEST[0][0])
    for segment in (HONEST[1][0], bytes(len(HONEST[0][0])), HONEST[0][0][:-1] + b"\0"):
        assert spoilt(segment)[0].refused == {"not_for_this_round": 1}


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


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_segment_that_is_not_finite_is_refused(bad):
    array = ROUND.array(0, 1.0)
    array[2, 1] = bad
    opened, kept = spoilt(ROUND.segment(0, array))
    assert (opened.refused, kept) == ({"not_finite": 1}, [1, 2, 3])


def test_padding_carries_nothing():
    spec, group = ROUND.plan.segments(ROUND.round)[0], ROUND.manifest.groups[0]
    assert group.padded_bytes > spec.byte_count
    smuggled = ROUND.array(0, 1.0).tobytes().ljust(group.padded_bytes - 1, b"\0") + b"!"
    opened, kept = spoilt(ROUND.segment(0, smuggled))
    assert (opened.refused, kept) == ({"bad_padding": 1}, [1, 2, 3])


def test_a_repeated_segment_counts_once():
    opened, kept = spoilt(HONEST[0][0])
    assert (opened.refused, kept) == ({"repeated_segment": 1}, [1, 2, 3])
    assert len(opened.accepted) == len(set(opened.accepted)) == 6


def test_a_norm_far_above_the_median_is_refused_and_one_below_stays():
    # With 1, 2, 3 and one large: the median is 2.5.
    opened, kept = spoilt(ROUND.segment(0, ROUND.array(0, 2.5 * NORM_FACTOR * 1.001)))
    assert (opened.refused, kept) == ({"norm": 1}, [1, 2, 3])
    _, kept = spoilt(ROUND.segment(0, ROUND.array(0, 2.5 * NORM_FACTOR * 0.999)))
    assert len(kept) == 4
    _, kept = spoilt(ROUND.segment(0, ROUND.array(0, 3e38)))  # its square is not finite in float32
    assert kept == [1, 2, 3]


def test_devices_without_records_or_noise_make_no_other_upload_unusual():
    mixed = [ROUND.segment(0, ROUND.array(0, value)) for value in (0.0, 0.0, 0.0, 1.0)]
    assert ROUND.opened([mixed, HONEST[1]]).refused == {}


def test_the_largest_numbers_are_refused_in_a_preparatory_sum_too():
    centre = CloudRound(CENTRE)
    (group,) = centre.honest()
    largest = np.finfo(np.float32).max
    for extreme in (largest, -largest):
        array = np.full(4, extreme, np.float32)
        opened = centre.opened([[*group, centre.segment(0, array)]])
        assert opened.refused == {"norm": 1}
        assert len(opened.arrays["centre"]) == 3


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


@pytest.mark.parametrize(
    "counts", [(), (3,), (3, 3, 0), (5, 3), (2, 3), (0, 0), (2**31, 3), (6, 0), (1, 1)]
)
def test_counts_that_do_not_fit_the_data_refuse_the_batch(counts):
    opened = ROUND.opened(HONEST, counts=counts)
    if sum(counts) == 6 and len(counts) == 2:  # the sizes fit: the segments do not
        assert opened.refused == {"not_for_this_round": 3}
        assert values(opened, HEAD) == [1, 2, 3]
    else:
        assert (opened.refused, opened.arrays, opened.accepted) == ({"malformed_batch": 1}, {}, [])


# --- aggregation ------------------------------------------------------------------------------


def test_the_mean_of_the_uploads_moves_the_model():
    state, uploads = aggregate(ROUND.context, ROUND.state, ROUND.opened(HONEST))
    expected = ROUND.plan.cloud.absorb(ROUND.state, ROUND.round, {HEAD: np.full((5, 3), 2.0)}, 3)
    assert uploads == 3
    assert np.array_equal(state["iterate"], expected["iterate"])
    assert not np.array_equal(state["iterate"], ROUND.state["iterate"])


def test_inferences_do_not_count_as_uploads():
    opened = ROUND.opened([HONEST[0][:2], HONEST[1]])
    with pytest.raises(JobFailed, match="2 valid uploads, at least 3") as caught:
        aggregate(ROUND.context, ROUND.state, opened)
    assert caught.value.where == "round 1"
    assert aggregate(ROUND.context, ROUND.state, ROUND.opened([HONEST[0], []]))[1] == 3


# --- selection and sealing --------------------------------------------------------------------


def chosen_of(plan, keys):
    """Whom a round asks in a fleet of one cell."""
    return select(plan, {"": keys})[""]


def test_a_selection_has_the_asked_number_of_different_keys():
    keys = public_keys(8)
    plan = compile_job(job(selection={"devices": 4, "over_select": 1.5}))
    chosen = {tuple(chosen_of(plan, keys)) for _ in range(20)}
    assert {len(set(c)) for c in chosen} == {6}
    assert all(set(c) <= set(keys) for c in chosen)
    assert len({frozenset(c) for c in chosen}) > 1
    assert sorted(chosen_of(compile_job(job()), keys)) == sorted(keys)


@pytest.mark.parametrize(
    "changes", [{"round": {"min_batch": 5}}, {"selection": {"min_devices": 5}}]
)
def test_too_few_enrolled_devices_are_named_with_the_fix(changes):
    with pytest.raises(JobFailed, match="4 devices can be selected, at least 5") as caught:
        chosen_of(compile_job(job(**changes)), public_keys(4))
    assert caught.value.fix


def test_no_more_devices_are_selected_than_a_sum_under_masks_has_room_for():
    """However many of them uploaded the most that they can, no sum would wrap around."""
    rule = {"name": "fedavg", "secure": True}
    everybody = compile_job(job(aggregation=rule, selection={"devices": "all"}))
    keys = [number.to_bytes(32, "big") for number in range(MOST_SUMMED + 1)]
    assert len(chosen_of(everybody, keys[:MOST_SUMMED])) == MOST_SUMMED
    with pytest.raises(TooManyDevices, match=r"16385 devices would be selected.*at most 16384"):
        chosen_of(everybody, keys)
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


def test_the_rounds_secret_survives_the_store_and_hides_itself():
    raw = ROUND.secret.to_bytes()
    again = RoundSecret.from_bytes(raw)
    assert len(raw) == 64 + 32 * len(ROUND.secret.recipients)
    assert again.to_bytes() == raw
    assert again.recipients == ROUND.secret.recipients
    assert again.membership == ROUND.secret.membership
    shown = repr(ROUND.secret)
    assert ROUND.secret.membership.hex() not in shown
    assert str(ROUND.secret.membership) not in shown
    assert raw[:32].hex() not in shown
