"""A round in several cells at the cloud's host: whom it asks, what it seals, what it adds up."""

from collections import Counter

import pytest
from round_kit import job, public_keys
from test_cloud_host import Desk

from edgeveil.jobs import compile_job
from edgeveil.protocol import cloud_job as ct
from edgeveil.protocol.cloud import RosterKept, RosterRefused
from edgeveil_cloud.broadcasts import select
from edgeveil_cloud.store import Store

NORTH, SOUTH = "north", "south"
CELLS = (NORTH, SOUTH)
KEYS = public_keys(9)
COHORTS = {NORTH: KEYS[:5], SOUTH: KEYS[5:]}


def rosters(desk, cohorts=COHORTS):
    desk.store.set_enrolled([])
    for cell, keys in cohorts.items():
        desk.host.store(RosterKept(1, b"".join(keys), cell=cell))
    return desk


def chosen(devices, cohorts, **changes):
    plan = compile_job(job(selection={"devices": devices}, **changes))
    return {cell: len(keys) for cell, keys in select(plan, cohorts).items()}


def test_cells_are_asked_for_whole_batches_and_on_average_each_device_as_often():
    keys = public_keys(44)
    cohorts = {NORTH: keys[:40], SOUTH: keys[40:]}
    plan = compile_job(job(selection={"devices": 11}))
    asked, rounds = Counter(), 3000
    for _ in range(rounds):
        found = select(plan, cohorts)
        assert found and all(len(of_it) >= 3 for of_it in found.values())  # a whole batch or none
        asked.update({cell: len(of_it) for cell, of_it in found.items()})
    # South's mean is 1 a round, in lots of 3 or 4: its standard error here is 0.026.
    assert abs(asked[SOUTH] / rounds - 1.0) < 0.13
    assert abs(asked[NORTH] / rounds - 10.0) < 0.13


def test_all_devices_of_all_cells_are_asked_but_of_one_below_the_floor():
    assert chosen("all", COHORTS) == {NORTH: 5, SOUTH: 4}
    assert chosen("all", {NORTH: KEYS[:5], SOUTH: KEYS[5:7]}) == {NORTH: 5}


@pytest.fixture
def desk():
    return rosters(Desk(Store()))


def sealed(desk, index=1, attempt=1, cells=CELLS):
    announced = desk.host.perform(ct.SealJob(desk.wire, cells))
    assert set(announced.by_cell) == set(cells)
    return dict(desk.host.perform(ct.SealRound(desk.wire, index, attempt, cells)).by_cell)


def test_a_round_has_a_key_and_a_broadcast_for_each_cell_and_asks_the_same_devices_again(desk):
    north, south = (one.manifest for one in sealed(desk).values())
    assert (north.selected, south.selected) == (5, 4)
    assert north.cloud_key != south.cloud_key
    assert north.sequence != south.sequence
    assert set(desk.store.round_keys(desk.id, 1, 1)) == set(CELLS)
    again = sealed(desk, attempt=2)
    assert {cell: one.manifest.selected for cell, one in again.items()} == {NORTH: 5, SOUTH: 4}
    desk.host.perform(ct.SealRound(desk.wire, 1, 3, (SOUTH,)))
    assert set(desk.store.round_keys(desk.id, 1, 3)) == {SOUTH}


def test_a_cell_whose_roster_is_refused_is_done_without(desk):
    desk.host.store(RosterRefused("foreign_registry", "ab" * 16, SOUTH))
    found = desk.host.perform(ct.SealJob(desk.wire, CELLS))
    assert isinstance(found, ct.CellBroadcasts) and set(found.by_cell) == {NORTH}
    desk.host.store(RosterRefused("foreign_registry", "ab" * 16, NORTH))
    blocked = desk.host.perform(ct.SealJob(desk.wire, CELLS))
    assert isinstance(blocked, ct.Obstacle) and "accept-registry" in blocked.reason


def cells_of(desk, key):
    return [cell for cell in CELLS if key in desk.store.enrolled(cell)]


def test_a_device_that_two_cells_claim_stays_where_it_was(desk, caplog):
    desk.host.store(RosterKept(2, b"".join([*KEYS[5:], KEYS[0]]), cell=SOUTH))
    assert cells_of(desk, KEYS[0]) == [NORTH]
    (line,) = [one for one in caplog.records if "claimed" in one.getMessage()]
    assert (line.cell, line.devices) == (SOUTH, 1)
    assert KEYS[0].hex() not in caplog.text


def answers(desk, found, **counts):
    """Batches of the cells; the uploads' values go on from one to the next: 1, 2, 3, …"""
    batches, before, key_of = {}, 0, desk.store.round_key
    for cell, count in counts.items():
        raw = key_of(desk.id, found[cell].manifest.at.round, 1, cell)
        desk.store.round_key = lambda *_, raw=raw: raw
        batch = desk.answers(found[cell], count, value=1.0 + before).batches[""]
        before += count
        data = desk.batches[batch.blob.digest]
        desk.host.store(ct.BatchPart(batch.blob.digest, 0, data, desk.wire, cell))
        batches[cell] = batch
    desk.store.round_key = key_of
    return ct.Absorb(batches)


def test_the_uploads_of_all_cells_are_one_commit(desk):
    found = sealed(desk)
    task = answers(desk, found, north=5, south=4)
    done = desk.host.perform(task)
    (record,) = desk.store.rounds(desk.id)
    assert record.uploads == 9
    assert done.commit.accepted == 9 * len(found[NORTH].manifest.groups)
    (event,) = [e for e in desk.store.events_after(0) if e.type == "exchange_committed"]
    assert event.data["cells"] == {NORTH: 5, SOUTH: 4}
    assert desk.host.perform(task) == done  # said again, not absorbed again
    digests = [batch.blob.digest for batch in task.batches.values()]
    assert [desk.store.open_batch(desk.id, 1, 1, digest) for digest in digests] == [None, None]


def test_which_cell_an_upload_came_from_changes_no_bit_of_the_model():
    states = []
    for north in (3, 6, 9):
        cohorts = {NORTH: KEYS[:north], SOUTH: KEYS[north:]} if north < 9 else {NORTH: KEYS}
        desk = rosters(Desk(Store()), cohorts)
        counts = {cell: len(keys) for cell, keys in cohorts.items()}
        task = answers(desk, sealed(desk, cells=tuple(cohorts)), **counts)
        assert isinstance(desk.host.perform(task), ct.RoundCommit)
        state = desk.host.jobs.state(desk.store.job(desk.id))
        states.append({name: array.tobytes() for name, array in state.items()})
    assert states[0] == states[1] == states[2] != {}


def test_a_cell_s_batch_is_opened_with_its_own_key_alone(desk):
    found = sealed(desk)
    task = answers(desk, found, north=5)
    crossed = ct.Absorb({SOUTH: task.batches[NORTH]})
    data = desk.batches[task.batches[NORTH].blob.digest]
    desk.host.store(ct.BatchPart(task.batches[NORTH].blob.digest, 0, data, desk.wire, SOUTH))
    refused = desk.host.perform(crossed)
    assert refused.answers is not None
    assert set(refused.answers.void) == {"not_for_this_round"}


def test_a_release_is_one_broadcast_for_all_cells_and_who_holds_it_is_known(desk):
    for index in (1, 2, 3, 4):
        desk.host.perform(answers(desk, sealed(desk, index), north=5, south=4))
    released = desk.host.perform(ct.SealRelease(desk.wire, CELLS))
    assert released.by_cell[NORTH] is released.by_cell[SOUTH]
    sequence = released.by_cell[NORTH].manifest.sequence
    desk.host.store(ct.ReleaseHeld(sequence, NORTH))
    (rollout,) = desk.store.rollouts.all()
    assert rollout.held and rollout.cells == (NORTH,)
    desk.host.store(ct.ReleaseHeld(sequence, SOUTH))
    assert desk.store.rollouts.all()[0].cells == CELLS
