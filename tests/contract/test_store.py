"""Laws that every backend of the cloud's store keeps.

SQLite in a file and in memory, and PostgreSQL: a server of our own where its programs are
installed, or the empty database that the variable EDGEVEIL_TEST_POSTGRES_URL names.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import count

import pytest

from edgeveil.protocol.cloud import RosterMark
from edgeveil_cloud.store import EVENTS_KEPT, Store
from edgeveil_cloud.store_tables import TRANSITIONS, RoundRecord, StoreError, UnknownJob
from tests.kits.postgres_server import GIVEN, empty, postgres_server

KEY = bytes(range(32))
DIGEST = bytes(32)


@pytest.fixture(scope="module")
def postgres():
    with nullcontext() if GIVEN else postgres_server() as server:
        yield GIVEN or server.url


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
    return store.set_status(submitted(store), "running").id


def round(index, **other):
    return RoundRecord(index, "train", index, attempt=1, uploads=20, **other)


def test_a_submitted_job_is_read_back_whole_and_the_queue_has_an_end(store):
    job = store.submit_job("digits", b"canonical", bytes(range(32)), queue_limit=1)
    assert job.id.startswith("digits-")
    assert (job.status, job.reason, job.canonical) == ("queued", "", b"canonical")
    assert job.digest == bytes(range(32))
    assert store.job(job.id) == job
    assert store.jobs() == (job,)
    assert (job.started_at, job.ended_at, job.ended) == (None, None, False)
    with pytest.raises(StoreError):
        store.submit_job("a", b"", DIGEST, queue_limit=1)
    assert len(store.jobs()) == 1


def test_jobs_are_worked_on_in_order_and_a_running_one_is_resumed_first(store):
    assert store.next_jobs() == ()
    first, second, third = (submitted(store) for _ in range(3))
    assert store.next_jobs()[0].id == first
    store.set_status(second, "running")
    assert store.next_jobs()[0].id == second
    store.set_status(second, "completed")
    store.cancel(first)
    assert store.next_jobs()[0].id == third
    assert store.newest_job_names(1) == (third,)
    assert store.newest_job_names(2) == (second, third)


def test_an_unknown_job_is_named(store):
    for ask in (
        store.job,
        store.cancel,
        store.glimpse,
        lambda job: store.put_release(job, b"", b""),
        lambda job: store.commit_round(job, round(1), b""),
    ):
        with pytest.raises(UnknownJob, match="no-such"):
            ask("no-such")


@pytest.mark.parametrize(
    "path", [[], ["running"], ["running", "completed"], ["failed"], ["running", "paused"]]
)
def test_a_job_moves_as_the_table_says_and_an_illegal_move_changes_nothing(store, path):
    for target in TRANSITIONS:
        job = submitted(store)
        for status in path:
            store.set_status(job, status, "on the way")
        before, seq = store.job(job), len(store.events_after(0))
        if target in TRANSITIONS[before.status]:
            after = store.set_status(job, target, "why")
            assert (after.status, after.reason) == (target, "why")
            assert after.ended == (after.ended_at is not None)
            continue
        moves = [lambda job=job, target=target: store.set_status(job, target, "for another reason")]
        moves += [] if before.status == "paused" else [lambda job=job: store.resume(job)]
        for move in moves:
            with pytest.raises(StoreError, match=f"is {before.status}"):
                move()
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
    with pytest.raises(StoreError):
        store.commit_round(job, round(2), b"")
    resumed = store.resume(job)
    assert (resumed.status, resumed.reason) == ("queued", "")
    assert store.next_jobs()[0].id == job  # it came before the other one
    assert store.set_status(job, "running").started_at == resumed.started_at
    types = [event.type for event in store.events_after(0, job)]
    assert types[-3:] == ["job_paused", "job_resumed", "job_running"]


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


def test_a_commit_is_read_back_and_made_once_in_order_of_a_running_job_whole(store):
    job, scores = running(store), {"score": None, "labels": [1]}
    waiting, cancelled = submitted(store), running(store)
    store.cancel(cancelled)
    for wrong, index in ((job, 2), (waiting, 1), (cancelled, 1)):
        with pytest.raises(StoreError):
            store.commit_round(wrong, round(index), b"")
    with pytest.raises((TypeError, StoreError)):  # an event that is not JSON
        store.commit_round(job, round(1), b"one", [("round", {"x": object()})])
    assert store.last_commit(job) is None
    record = round(1, accuracy=0.5, loss=1.25, scores=scores, bytes={"up": 7})
    hashes = [bytes([k]) * 32 for k in (3, 1, 2)]
    assert store.commit_round(job, record, b"state one", [("round", {})], hashes, [b"b" * 32])
    events = store.events_after(0)
    assert not store.commit_round(job, round(1), b"other", [("round", {})], [], [b"b" * 32])
    assert store.events_after(0) == events
    last = store.last_commit(job)
    assert (last.index, last.state, last.accepted) == (1, b"state one", tuple(sorted(hashes)))
    assert (last.record.scores, last.record.bytes) == (scores, {"up": 7})
    assert last.record.committed_at is not None
    assert store.commit_round(job, round(2), b"state two")
    assert store.last_commit(job).state == b"state two"
    one, two = store.rounds(job)
    assert (one, two.index, two.scores) == (last.record, 2, None)


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


def test_round_keys_live_until_their_commit(store):
    job = running(store)
    assert store.next_attempt(job, 1) == 1
    store.put_round_key(job, 1, 1, KEY)
    store.put_round_key(job, 1, 2, KEY[::-1])
    store.put_round_key(job, 2, 1, KEY)
    store.put_round_key(job, 1, 1, KEY)  # the same again, after a crash
    with pytest.raises(StoreError):
        store.put_round_key(job, 1, 1, KEY[::-1])
    assert store.round_key(job, 1, 2) == KEY[::-1]
    assert [store.next_attempt(job, index) for index in (1, 2, 3)] == [3, 2, 1]
    store.commit_round(job, round(1), b"")
    assert (store.round_key(job, 1, 1), store.round_key(job, 1, 2)) == (None, None)
    assert store.round_key(job, 2, 1) == KEY
    store.set_status(job, "failed")
    assert store.round_key(job, 2, 1) is None


def test_a_jobs_life_is_in_its_events_and_a_glimpse_has_the_newest(store):
    job = running(store)
    assert store.glimpse(job).newest is store.glimpse(job).tested is None
    store.commit_round(job, round(1, accuracy=0.5), b"", [("round_committed", {"round": 1})])
    store.commit_round(job, round(2), b"")
    found = store.glimpse(job)
    assert (found.entry.status, found.newest.index, found.tested.accuracy) == ("running", 2, 0.5)
    store.commit_round(job, round(3, loss=0.04), b"")  # of a number there is no accuracy
    tested = store.glimpse(job).tested
    assert (tested.accuracy, tested.loss) == (None, 0.04)
    store.set_status(job, "paused", "too few", {"answers": {"selected": 3}})
    store.append_event(job, "release_withdrawn", {})
    assert store.glimpse(job).life.data == {"reason": "too few", "answers": {"selected": 3}}
    types = [event.type for event in store.events_after(0, job)]
    life = ["job_submitted", "job_running", "round_committed", "job_paused", "release_withdrawn"]
    assert types == life


def test_events_are_numbered_and_read_on_from_a_number_and_a_release_is_replaced(store):
    job, other = submitted(store), submitted(store)
    assert store.release(job) is None
    for number in (b"1", b"2"):
        store.put_release(job, b"onnx" + number, b"tensors" + number)
    release = store.release(job)
    assert (release.onnx, release.safetensors) == (b"onnx2", b"tensors2")
    start = store.events_after(0)[-1].seq
    made = [store.append_event(job, "note", {"k": k}) for k in range(3)]
    store.append_event(None, "started", {})
    store.append_event(other, "note", {})
    assert store.events_after(start, job) == tuple(made)
    assert store.events_after(made[0].seq, job) == tuple(made[1:])
    assert [event.job for event in store.events_after(start)] == [job] * 3 + [None, other]
    assert store.events_after(start, job, limit=2) == tuple(made[:2])
    assert store.events_after(10**6) == ()


def test_enrolled_keys_are_a_set_in_the_order_of_their_bytes_and_counted(store):
    assert (store.counts().enrolled, dict(store.counts().jobs)) == (0, {})
    running(store), submitted(store), submitted(store)
    keys = [bytes([k]) * 32 for k in (9, 1, 200)]
    for given in (keys, [keys[1], b"n" * 32], []):
        store.set_enrolled(given)
        assert store.enrolled() == tuple(sorted(given))
        assert store.counts().enrolled == len(given)
    assert dict(store.counts().jobs) == {"running": 1, "queued": 2}


def test_threads_share_a_store(store):
    job = running(store)

    def work(name):
        for k in range(20):
            store.append_event(job, name, {"k": k})
            store.events_after(0, job)
            if name == "a":
                store.commit_round(job, round(k + 1), b"state")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, "abc"))
    assert sum(event.type in "abc" for event in store.events_after(0, job)) == 60
    assert store.last_commit(job).index == 20


def test_devices_are_counted_by_cell(store):
    assert store.devices() == ()
    store.set_enrolled({KEY, KEY[::-1]}, "north")
    store.take_roster(RosterMark("lineage", 1), 5000.0, "north")
    store.refuse_roster("rosters_went_back", "other", "south")
    north, south = store.devices()
    assert (north.cell, north.enrolled, north.expires_s) == ("north", 2, 5000.0)
    assert (south.cell, south.enrolled) == ("south", 0)
    before = store.news_of_all  # grows with what was stored and with nothing else
    job = submitted(store)
    assert (after := store.news_of_all) > before
    store.job(job)
    assert store.news_of_all == after
