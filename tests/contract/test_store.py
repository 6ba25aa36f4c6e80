"""Laws that every backend of the cloud's store keeps.

SQLite in a file and in memory, and PostgreSQL: a server of our own where its programs are
installed, or the empty database that the variable EDGEVEIL_TEST_POSTGRES_URL names.
"""

import threading
from itertools import count

import pytest

from edgeveil.protocol.cloud import RosterMark
from edgeveil_cloud.store import EVENTS_KEPT, Store
from edgeveil_cloud.store_tables import (
    TRANSITIONS,
    RoundRecord,
    StoreError,
    UnknownJob,
)
from tests.kits.postgres_server import GIVEN, empty, postgres_server

KEY = bytes(range(32))
DIGEST = bytes(32)


@pytest.fixture(scope="module")
def postgres():
    """The URL of an empty database."""
    if GIVEN:
        yield GIVEN
        return
    with postgres_server() as server:
        yield server.url


@pytest.fixture(params=["file", "memory", "postgres"])
def store(request, tmp_path):
    url = {"file": f"sqlite:///{tmp_path}/cloud.db", "memory": "sqlite://"}.get(request.param)
    server = "" if url else request.getfixturevalue("postgres")
    clock = count(1000)
    opened = Store(url or server, now_s=lambda: float(next(clock)))
    yield opened
    opened.close()
    if server:
        empty(server)


def submitted(store, name="quickstart"):
    return store.submit_job(name, b'{"job":"quickstart"}', DIGEST).id


def running(store):
    job = submitted(store)
    store.set_status(job, "running")
    return job


def round(index, **other):
    return RoundRecord(index, "train", index, attempt=1, uploads=20, **other)


def test_a_submitted_job_is_read_back_whole(store):
    job = store.submit_job("digits", b"canonical", bytes(range(32)))
    assert job.id.startswith("digits-")
    assert (job.status, job.reason, job.canonical) == ("queued", "", b"canonical")
    assert job.digest == bytes(range(32))
    assert store.job(job.id) == job
    assert store.jobs() == (job,)
    assert (job.started_at, job.ended_at, job.ended) == (None, None, False)


def test_the_queue_has_an_end(store):
    for _ in range(2):
        store.submit_job("a", b"", DIGEST, queue_limit=2)
    with pytest.raises(StoreError, match="2 jobs are waiting"):
        store.submit_job("a", b"", DIGEST, queue_limit=2)
    assert len(store.jobs()) == 2


def test_jobs_are_worked_on_in_order_and_a_running_one_is_resumed_first(store):
    assert store.next_jobs() == ()
    first, second, third = (submitted(store) for _ in range(3))
    assert store.next_jobs()[0].id == first
    store.set_status(second, "running")
    assert store.next_jobs()[0].id == second
    store.set_status(second, "completed")
    store.cancel(first)
    assert store.next_jobs()[0].id == third


def test_an_unknown_job_is_named(store):
    for ask in (store.job, store.cancel, lambda job: store.put_release(job, b"", b"")):
        with pytest.raises(UnknownJob, match="no-such"):
            ask("no-such")
    with pytest.raises(UnknownJob):
        store.commit_round("no-such", round(1), b"")


@pytest.mark.parametrize("target", list(TRANSITIONS))
@pytest.mark.parametrize(
    "path", [[], ["running"], ["running", "completed"], ["failed"], ["running", "paused"]]
)
def test_a_job_moves_as_the_table_says_and_an_illegal_move_changes_nothing(store, path, target):
    job = submitted(store)
    for status in path:
        store.set_status(job, status, "on the way")
    before, seq = store.job(job), len(store.events_after(0))
    if target in TRANSITIONS[before.status]:
        after = store.set_status(job, target, "why")
        assert (after.status, after.reason) == (target, "why")
        assert after.ended == (after.ended_at is not None)
    else:
        with pytest.raises(StoreError, match=f"is {before.status}"):
            store.set_status(job, target, "for another reason")
        assert store.job(job) == before
        assert len(store.events_after(0)) == seq


def test_a_paused_job_waits_for_nobody_and_keeps_what_it_needs(store):
    job, other = running(store), submitted(store)
    store.commit_round(job, round(1), b"state")
    store.put_round_key(job, 2, 1, KEY)
    store.set_status(job, "paused", "no device answered")
    assert (store.job(job).reason, store.job(job).ended_at) == ("no device answered", None)
    assert store.next_jobs()[0].id == other
    assert store.round_key(job, 2, 1) == KEY
    with pytest.raises(StoreError, match="paused"):
        store.commit_round(job, round(2), b"")
    assert store.resume(job).status == "queued"
    assert store.job(job).reason == ""
    assert store.next_jobs()[0].id == job  # it came before the other one
    assert store.set_status(job, "running").started_at == store.job(job).started_at
    types = [event.type for event in store.events_after(0, job)]
    assert types[-3:] == ["job_paused", "job_resumed", "job_running"]


@pytest.mark.parametrize("path", [[], ["running"], ["running", "completed"], ["cancelled"]])
def test_only_a_paused_job_is_resumed(store, path):
    job = submitted(store)
    for status in path:
        store.set_status(job, status)
    before = store.job(job)
    with pytest.raises(StoreError, match=f"is {before.status}: only a paused one"):
        store.resume(job)
    assert store.job(job) == before


def test_attempts_go_on_behind_the_last_key(store):
    job = running(store)
    assert store.next_attempt(job, 1) == 1
    for attempt in (1, 2, 3):
        store.put_round_key(job, 1, attempt, KEY)
    assert (store.next_attempt(job, 1), store.next_attempt(job, 2)) == (4, 1)


def test_counts_are_those_of_the_rows(store):
    assert (store.counts().enrolled, dict(store.counts().jobs)) == (0, {})
    store.set_enrolled([bytes([k]) * 32 for k in range(5)])
    running(store), submitted(store), submitted(store)
    assert store.counts().enrolled == 5
    assert dict(store.counts().jobs) == {"running": 1, "queued": 2}


def test_a_jobs_events_are_bounded_and_the_newest_stay(store, monkeypatch):
    assert EVENTS_KEPT >= 1000
    monkeypatch.setattr("edgeveil_cloud.store.EVENTS_KEPT", 20)
    quiet, noisy = submitted(store), submitted(store)
    first = store.append_event(noisy, "exchange_committed", {"k": 0})
    made = [store.append_event(noisy, "note", {"k": k}) for k in range(600)]
    commit, *kept = store.events_after(0, noisy)
    assert commit == first
    assert 20 <= len(kept) <= 20 + 256
    assert kept == made[-len(kept) :]
    assert len(store.events_after(0, quiet)) == 1


def test_a_commit_is_read_back_and_only_the_newest_state_is_kept(store):
    job = running(store)
    assert store.last_commit(job) is None
    record = round(
        1, accuracy=0.5, loss=1.25, scores={"score": None, "labels": [1]}, bytes={"up": 7}
    )
    hashes = [bytes([k]) * 32 for k in (3, 1, 2)]
    assert store.commit_round(job, record, b"state one", [], hashes)
    last = store.last_commit(job)
    assert (last.index, last.state, last.accepted) == (1, b"state one", tuple(sorted(hashes)))
    assert last.record.scores == {"score": None, "labels": [1]}
    assert last.record.committed_at is not None
    assert store.commit_round(job, round(2), b"state two")
    assert store.last_commit(job).state == b"state two"
    assert [one.index for one in store.rounds(job)] == [1, 2]
    assert store.rounds(job)[0] == last.record
    assert (store.rounds(job)[0].bytes, store.rounds(job)[1].scores) == ({"up": 7}, None)


def test_committing_again_changes_nothing(store):
    job = running(store)
    assert store.commit_round(job, round(1), b"one", [("round", {})], [], [b"b" * 32])
    events = store.events_after(0)
    assert not store.commit_round(job, round(1), b"other", [("round", {})], [], [b"b" * 32])
    assert store.last_commit(job).state == b"one"
    assert store.events_after(0) == events


def test_commits_come_in_order_and_only_to_a_running_job(store):
    job = running(store)
    with pytest.raises(StoreError, match="its last round is 0"):
        store.commit_round(job, round(2), b"")
    waiting = submitted(store)
    with pytest.raises(StoreError, match="queued"):
        store.commit_round(waiting, round(1), b"")
    store.cancel(job)
    with pytest.raises(StoreError, match="cancelled"):
        store.commit_round(job, round(1), b"")


def test_a_batch_is_absorbed_once_and_the_refusal_undoes_everything(store):
    job, batch = running(store), b"b" * 32
    assert store.open_batch(job, 1, 1, batch) is not None
    store.commit_round(job, round(1), b"one", batch_digests=[batch])
    assert store.open_batch(job, 1, 1, batch) is None
    store.put_round_key(job, 2, 1, KEY)
    with pytest.raises(StoreError, match="absorbed by round 1"):
        store.commit_round(job, round(2), b"two", [("round", {})], batch_digests=[batch])
    assert store.last_commit(job).state == b"one"
    assert store.round_key(job, 2, 1) == KEY
    assert [event.type for event in store.events_after(0)].count("round") == 0
    other = submitted(store)
    assert store.open_batch(other, 1, 1, batch) is not None


def test_a_failure_in_the_middle_of_a_commit_undoes_all_of_it(store):
    job = running(store)
    store.put_round_key(job, 1, 1, KEY)
    with pytest.raises((TypeError, StoreError)):  # an event that is not JSON
        store.commit_round(job, round(1), b"one", [("round", {"x": object()})])
    assert store.last_commit(job) is None
    assert store.round_key(job, 1, 1) == KEY


def test_round_keys_live_until_their_commit(store):
    job = running(store)
    store.put_round_key(job, 1, 1, KEY)
    store.put_round_key(job, 1, 2, KEY[::-1])
    store.put_round_key(job, 2, 1, KEY)
    store.put_round_key(job, 1, 1, KEY)  # the same again, after a crash
    with pytest.raises(StoreError, match="another round key"):
        store.put_round_key(job, 1, 1, KEY[::-1])
    assert store.round_key(job, 1, 2) == KEY[::-1]
    store.commit_round(job, round(1), b"")
    assert (store.round_key(job, 1, 1), store.round_key(job, 1, 2)) == (None, None)
    assert store.round_key(job, 2, 1) == KEY
    store.set_status(job, "failed")
    assert store.round_key(job, 2, 1) is None


def test_events_are_numbered_and_read_on_from_a_number(store):
    job, other = submitted(store), submitted(store)
    start = store.events_after(0)[-1].seq
    made = [store.append_event(job, "note", {"k": k}) for k in range(3)]
    store.append_event(None, "started", {})
    store.append_event(other, "note", {})
    assert store.events_after(start, job) == tuple(made)
    assert store.events_after(made[0].seq, job) == tuple(made[1:])
    assert [event.job for event in store.events_after(start)] == [job] * 3 + [None, other]
    assert store.events_after(start, job, limit=2) == tuple(made[:2])
    assert store.events_after(10**6) == ()


def test_a_jobs_life_is_in_its_events(store):
    job = running(store)
    store.commit_round(job, round(1), b"", [("round_committed", {"round": 1})])
    store.set_status(job, "completed", "done", {"rounds": 1})
    events = store.events_after(0, job)
    types = [event.type for event in events]
    assert types == ["job_submitted", "job_running", "round_committed", "job_completed"]
    assert events[-1].data == {"rounds": 1, "reason": "done"}


def test_enrolled_keys_are_a_set_in_the_order_of_their_bytes(store):
    keys = [bytes([k]) * 32 for k in (9, 1, 200)]
    store.set_enrolled(keys)
    assert store.enrolled() == tuple(sorted(keys))
    store.set_enrolled([keys[1], b"n" * 32])
    assert store.enrolled() == (keys[1], b"n" * 32)
    store.set_enrolled([])
    assert store.enrolled() == ()


def test_a_release_is_kept_and_replaced(store):
    job = submitted(store)
    assert store.release(job) is None
    for number in (b"1", b"2"):
        store.put_release(job, b"onnx" + number, b"tensors" + number)
    release = store.release(job)
    assert (release.onnx, release.safetensors) == (b"onnx2", b"tensors2")


def test_threads_share_a_store(store):
    job, failures = running(store), []

    def work(name):
        try:
            for k in range(20):
                store.append_event(job, name, {"k": k})
                store.events_after(0, job)
                if name == "a":
                    store.commit_round(job, round(k + 1), b"state")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    notes = [event for event in store.events_after(0, job) if event.type in "abc"]
    assert len(notes) == 60
    assert store.last_commit(job).index == 20


def test_a_glimpse_has_the_newest_of_a_job(store):
    job = running(store)
    assert store.glimpse(job).newest is store.glimpse(job).tested is None
    store.commit_round(job, round(1, accuracy=0.5), b"")
    store.commit_round(job, round(2), b"")
    found = store.glimpse(job)
    assert (found.entry.status, found.newest.index, found.tested.accuracy) == ("running", 2, 0.5)
    store.commit_round(job, round(3, loss=0.04), b"")  # of a number there is no accuracy
    tested = store.glimpse(job).tested
    assert (tested.accuracy, tested.loss) == (None, 0.04)
    store.set_status(job, "paused", "too few", {"answers": {"selected": 3}})
    store.append_event(job, "release_withdrawn", {})
    assert store.glimpse(job).life.data == {"reason": "too few", "answers": {"selected": 3}}
    with pytest.raises(UnknownJob):
        store.glimpse("none")


def test_the_newest_jobs_and_those_that_go_on_are_named(store):
    first, *ended = [submitted(store, f"job-{k}") for k in range(4)]
    for job in ended:
        store.cancel(job)
    assert store.newest_job_names(2) == (first, *ended[-2:])
    assert store.newest_job_names(0) == (first,)


def test_devices_are_counted_by_cell(store):
    assert store.devices() == ()
    store.set_enrolled({KEY, KEY[::-1]}, "north")
    store.take_roster(RosterMark("lineage", 1), 5000.0, "north")
    store.refuse_roster("rosters_went_back", "other", "south")
    north, south = store.devices()
    assert (north.cell, north.enrolled, north.expires_s) == ("north", 2, 5000.0)
    assert (south.cell, south.enrolled) == ("south", 0)


def test_news_of_all_grows_with_what_was_stored_and_with_nothing_else(store):
    before = store.news_of_all
    job = submitted(store)
    assert (after := store.news_of_all) > before
    store.job(job)
    assert store.news_of_all == after
