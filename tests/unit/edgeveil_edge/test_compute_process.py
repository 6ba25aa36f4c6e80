"""The process that computes for a device: the same bits, and an end where it takes too long.

The child is real. What a hostile graph could do to it is played by an own model's code, which may
do anything when it meets the one record that the attack is about.
"""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Pipe
from pathlib import Path

import edge_kit as kit
import numpy as np
import psutil
import pytest
from msgspec import structs

from edgeveil.data.records import Records
from edgeveil.data.schema import Column, DataSchema, Label
from edgeveil.errors import DataError, EdgeVeilError, ProtocolError, RecordsError
from edgeveil.evaluation.inference import InferenceSession
from edgeveil.jobs import compile_job
from edgeveil.jobs.plan import SOFTMAX
from edgeveil.privacy.derived import DerivedRandom
from edgeveil.protocol.sealed import RoundPackage
from edgeveil.protocol.tensors import pack_tensors
from edgeveil_edge import compute, compute_child, compute_process
from edgeveil_edge.compute import Computation, Computer, TaughtJob
from edgeveil_edge.compute_process import ComputeProcess, RemoteComputer, digest_of
from edgeveil_edge.compute_worker import read_in_fork, receive

KEY, SPLIT_KEY = bytes(range(32)), bytes(32)
MODULE = "hostile_net"
DATA = {
    "source": "own",
    "classes": 3,
    "input_shape": (4,),
    "nominal_records": 30,
    "evaluation_share": 0.2,
}
TRIGGER = 1000.0  # the value by which the model knows the record
CODE = f"""
import os, signal, time
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
    def forward(self, x):
        if bool((x == {TRIGGER}).any()) and os.environ.get("HOSTILE_NET"):
            exec(os.environ["HOSTILE_NET"])
        return self.layer(x)
"""


def site(folder, path, **data):
    own = {"name": "own", "source": "npz", "path": path, **data}
    return kit.site(folder, data=own, policy={"max_records": 4 * DATA["nominal_records"]})


SCHEMA = DataSchema(
    origin="public",
    label=Label(column="label", classes=("no", "yes")),
    columns=(Column(name="age", number=(17, 90)),),
)


def taught(graph=None, **changes):
    plain = {
        "data": DATA,
        "train": {"method": "fm", "rounds": 2},
        "privacy": {"epsilon": 8.0},
        "round": {"budget_s": 20.0},
    }
    plan = compile_job(kit.job(**{**plain, **changes}))
    return TaughtJob(plan, plan.job.canonical(), plan.graph() if graph is None else graph)


def plainly(**changes):
    plain = {
        "features": (),
        "train": {"method": "sgd", "rounds": 2},
        "privacy": {"epsilon": 8.0, "accept_unproven": True},
        "unsupervised": {"every_rounds": 0},
    }
    return taught(graph=b"", **{**plain, **changes})


def own_net():
    """The model whose code does as HOSTILE_NET says."""
    weights = (("layer.weight", (3, 4)), ("layer.bias", (3,)))
    return plainly(model={"name": "python", "function": f"{MODULE}:Net", "weights": weights})


def records(path, count=40, first=0.5):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(count, 4)).astype(np.float32)
    if count:
        x[0] = first
    np.savez(path, x=x, y=rng.integers(0, 3, count))
    return path


def computation(job, index=1, until_s=60.0):
    plan = job.plan
    round, state = plan.round(index), plan.cloud.initial_state()
    package = RoundPackage(
        round.phase,
        round.number,
        round.infer,
        pack_tensors(plan.cloud.package(state, round)),
        pack_tensors(plan.cloud.model(state)) if round.infer else b"",
    )
    until_s += time.monotonic()
    noise = DerivedRandom(KEY)
    return Computation(job, round, package, {}, True, noise, until_s=until_s, allowed_s=until_s)


@pytest.fixture
def process(tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / f"{MODULE}.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path / "code")
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'code'}:{Path.cwd()}:{before}")
    found = ComputeProcess()
    yield found
    found.close()
    found.end()


def remote(process, folder, path, name="0" * 16, **data):
    return RemoteComputer(process, name, site(folder, path, **data), SPLIT_KEY)


def nobody(folder):
    return Computer(site(folder, records(folder / "none.npz", 0)), SPLIT_KEY)


def preempted(process):
    """The process hands on answers without records once the ones with records lie there."""
    plain = process._blank

    def late(*asked):
        blank = plain(*asked)
        assert process._connection.poll(30)
        return blank

    return late


def tensors(found):
    return {name: a.tobytes() for part in found.parts for name, a in part.segments.items()}


def child(process):
    """The one that serves: the child, or its branch while a job is known."""
    found = psutil.Process(process._child.pid)
    return found.children()[0] if process._jobs else found


def test_a_trial_waits_for_the_time_of_an_answer_and_not_for_the_answer(process, tmp_path):
    """When it ended, and with it a job's arrival, would tell how long records took."""
    far = remote(process, tmp_path, records(tmp_path / "own.npz"))
    far.answer(computation(taught(), until_s=3.0))
    process._answers_until_s, process._clock = 1.0, (now := Clock())
    tried = threading.Thread(
        target=far.try_job, args=(taught(job="other"),), kwargs={"trains": True}
    )
    tried.start()
    tried.join(1.5)
    assert tried.is_alive() and len(process._jobs) == 1
    now.seconds = 2.0
    tried.join()
    assert len(process._jobs) == 2


def test_reading_by_a_schema_takes_a_public_time_whatever_there_is_to_read(process, tmp_path):
    """When it ended, and with it a job's arrival or another job's answer, would tell of records."""
    path = tmp_path / "own.csv"
    path.write_text("age,label\n" + "39,no\n" * 40)
    far = remote(process, tmp_path, path, source="csv", header=True)
    step_s = compute.reading_s(far.site)
    process._clock = now = Clock()
    reads = threading.Thread(target=far.read_ahead, args=(0.2, SCHEMA))
    reads.start()
    while not process._read:
        time.sleep(0.01)
    path.unlink()
    tries = threading.Thread(target=far.try_job, args=(taught(),), kwargs={"trains": True})
    tries.start()
    now.seconds = 0.99 * step_s
    reads.join(1.0)
    assert reads.is_alive() and not process._jobs  # nothing else is done either
    now.seconds = step_s
    reads.join()
    tries.join()
    assert len(process._jobs) == 1
    far.read_ahead(0.2, SCHEMA)  # known: nothing is waited for


@pytest.mark.parametrize(("took_s", "there_s"), [(0.0, 3), (3.0, 3), (3.1, 6), (13.0, 24)])
def test_a_longer_reading_shows_by_doublings_alone(took_s, there_s):
    assert compute_process.public_time_s(took_s, 3) == there_s


@pytest.mark.parametrize(
    "fails", ["time.sleep(0.4)\n    raise ValueError", "os.abort()", "os._exit(0)"]
)
def test_records_that_cannot_be_read_make_no_answer_wait(process, tmp_path, fails):
    """Nor are they tried again: when, and whether, a device answers would follow from a record.

    The process that keeps the records runs none of the source's code.
    """
    noted = f"open({str(tmp_path / 'reads')!r}, 'a').write('x')"
    code = f"import os, time\ndef load():\n    {noted}\n    {fails}\n"
    (tmp_path / "code" / "own_source.py").write_text(code)
    far = remote(process, tmp_path, None, source="python: own_source:load")
    far.try_job(taught(), trains=True)
    keeper = process._child
    assert far.read_ahead(0.2)
    reads = (tmp_path / "reads").read_text()
    found = [far.answer(computation(taught())) for _ in range(4)]
    assert all(one.without and not one.late for one in found)
    assert process._child is keeper and not far.read_ahead(0.2)
    assert (tmp_path / "reads").read_text() == reads


def test_what_is_known_waits_for_no_answer_and_what_was_forgotten_is_read_anew(process, tmp_path):
    """Else a reading would be part of an answer, whose time no trial has tried."""
    one = remote(process, tmp_path, records(tmp_path / "own.npz"))
    other = remote(process, tmp_path, tmp_path / "own.npz", "1" * 16)
    shares = [0.1 + 0.01 * number for number in range(2 * one.site.policy.max_jobs + 1)]
    for device in (one, other):
        assert all(device.read_ahead(share) for share in shares)
    found = one.try_job(taught(), trains=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(process, "_clock", lambda: pytest.fail("it waits"))
        assert other.try_job(taught(), trains=True) is found
        assert not any(one.read_ahead(share) for share in shares[1:])
    assert one.read_ahead(shares[0])


class Clock:
    """Stands still until it is moved; waits of real time see it again."""

    seconds = 0.0

    def __call__(self):
        return self.seconds


def test_another_process_gives_the_same_bits_at_the_same_price(process, tmp_path):
    """And reads no record for a package that is not in order."""
    path = records(tmp_path / "own.npz")
    job, far = taught(), remote(process, tmp_path, path)
    bad = computation(job, index=2)
    bad = replace(bad, package=structs.replace(bad.package, tensors=pack_tensors({})))
    absent = remote(process, tmp_path, tmp_path / "nowhere.npz", "1" * 16)
    with pytest.raises(ProtocolError) as caught:
        absent.answer(bad)
    assert caught.value.reason == "bad_package"
    near = Computer(site(tmp_path, path), SPLIT_KEY)
    for round in job.plan.all_rounds:
        asked = computation(job, round.index)
        here, there = near.answer(asked), far.answer(asked)
        assert tensors(here) == tensors(there)
        assert [part.events for part in here.parts] == [part.events for part in there.parts]
        assert there.without == ""
        assert tensors(nobody(tmp_path).answer(asked)) != tensors(there)


HANGS = {
    "for ever": "while True: time.sleep(1)",
    "busy, holding the interpreter": "any(iter(int, 1))",
    "ends the process": "os.kill(os.getpid(), signal.SIGKILL)",
    "raises": "raise ValueError('a record')",
}


@pytest.mark.parametrize("how", HANGS)
def test_whatever_a_record_makes_the_computation_do_the_answer_is_that_without_records(
    process, tmp_path, monkeypatch, how
):
    monkeypatch.setenv("HOSTILE_NET", HANGS[how])
    job = own_net()
    far = remote(process, tmp_path, records(tmp_path / "own.npz", first=TRIGGER))
    assert far.try_job(job, trains=True).refused == ""
    found = far.answer(computation(job, until_s=3.0))
    assert found.without
    assert found.late == (how in ("for ever", "busy, holding the interpreter"))
    assert "a record" not in found.without
    monkeypatch.delenv("HOSTILE_NET")
    assert tensors(found) == tensors(nobody(tmp_path).answer(computation(job)))
    # The child that was ended has been replaced, and nobody else's answer suffers.
    other = remote(process, tmp_path, records(tmp_path / "other.npz"), "c" * 16)
    assert other.answer(computation(job, until_s=60.0)).without == ""


def test_a_box_that_is_late_with_the_empty_answer_sends_that_late(process, tmp_path, monkeypatch):
    far = remote(process, tmp_path, records(tmp_path / "own.npz"))
    monkeypatch.setattr(process, "_blank", preempted(process))
    found = far.answer(computation(taught(), until_s=0.0))
    assert tensors(found) == tensors(nobody(tmp_path).answer(computation(taught())))
    assert "not done within" in found.without


def test_a_worker_that_was_late_with_a_large_answer_is_asked_again(process, tmp_path, monkeypatch):
    """It may still have to hand over more than a pipe holds while it is asked as much."""
    large = plainly(model={"name": "mlp", "hidden": [500, 500]})
    far = remote(process, tmp_path, records(tmp_path / "own.npz"))
    assert far.answer(computation(large)).without == ""
    with monkeypatch.context() as patched:
        patched.setattr(process, "_blank", preempted(process))
        assert "not done within" in far.answer(computation(large, until_s=0.0)).without
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(far.answer, computation(large, 2)).result(60).without == ""


def test_what_evaluation_records_do_changes_no_training_answer(tmp_path, monkeypatch):
    path, index = records(tmp_path / "own.npz"), 3
    job, own = taught(), site(tmp_path, path)
    assert job.plan.round(index).infer
    sound = Computer(own, SPLIT_KEY).answer(computation(job, index))
    real = InferenceSession.summed_softmax

    def fails(session, x, *rest):
        if len(x):
            raise ValueError("a record")
        return real(session, x, *rest)

    monkeypatch.setattr(InferenceSession, "summed_softmax", fails)
    found = Computer(own, SPLIT_KEY).answer(computation(job, index))
    assert "ValueError" in found.without
    assert tensors(found)["head.weight"] == tensors(sound)["head.weight"]
    empty = tensors(nobody(tmp_path).answer(computation(job, index)))
    assert tensors(found)[SOFTMAX] == empty[SOFTMAX]
    assert Computer(own, SPLIT_KEY).order(computation(job, index)) == ("train", "infer")


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("return self", "time.sleep(3600)\n        return self"),
        ("class Net", "raise SystemExit\nclass Net"),
        ("return self", "os.abort()\n        return self"),
    ],
    ids=["hangs", "exits", "aborts"],
)
def test_code_that_hangs_or_ends_its_process_ends_a_trial_and_no_device(
    process, tmp_path, monkeypatch, place, code
):
    if "sleep" in code:
        monkeypatch.setattr(compute_process, "TRIAL_S", -78.0)  # with the budget's share: 2 s
    (tmp_path / "code" / f"{MODULE}.py").write_text(CODE.replace(place, code))
    far = remote(process, tmp_path, records(tmp_path / "own.npz"))
    assert far.try_job(own_net(), trains=True).refused
    assert far.answer(computation(taught())).parts  # another job's round goes on


def test_a_trial_takes_no_more_memory_than_records_may(process, tmp_path):
    own = site(tmp_path, tmp_path / "nowhere.npz")
    vast = own.model_copy(update={"policy": own.policy.model_copy(update={"max_records": 10**9})})
    found = RemoteComputer(process, "0" * 16, vast, SPLIT_KEY).try_job(taught(), trains=True)
    assert "policy.max_records" in found.refused


def test_the_child_ends_with_the_process_that_started_it(tmp_path):
    pid = os.fork()
    if pid == 0:
        inner = ComputeProcess()
        inner.start()
        inner._fork()
        while not child(inner).children():
            time.sleep(0.05)
        pids = [inner._child.pid, *(one.pid for one in child(inner).children())]
        (tmp_path / "pid").write_text(" ".join(map(str, pids)))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    started = [int(text) for text in (tmp_path / "pid").read_text().split()]
    assert len(started) == 2
    until_s = time.monotonic() + 30
    while any(map(alive, started)) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not any(map(alive, started))


def alive(pid):
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_job_that_ends_during_another_s_trial_does_not_end_that(process, tmp_path):
    """The end comes on another thread; it is told once the trial is over."""
    device = remote(process, tmp_path, records(tmp_path / "own.npz"))
    ended, other = taught(), taught(job="other")
    assert device.try_job(ended, trains=True).refused == ""
    threads = []
    receive = process._receive

    def meanwhile(until_s):
        if not threads:
            threads.append(threading.Thread(target=device.forget, args=(ended,)))
            threads[0].start()
            threads[0].join()
        return receive(until_s)

    process._receive = meanwhile
    assert device.try_job(other, trains=True).refused == ""
    assert threads and process._jobs == {digest_of(other)}


def test_a_child_that_died_is_started_anew_until_the_process_stops(process, tmp_path):
    far = remote(process, tmp_path, records(tmp_path / "own.npz"))
    first = tensors(far.answer(computation(taught())))
    child(process).kill()
    process._child.wait()
    assert tensors(far.answer(computation(taught()))) == first
    process.close()
    with pytest.raises(EdgeVeilError) as caught:
        far.answer(computation(taught()))
    assert getattr(caught.value, "reason", "") == "stopping"


def test_what_jobs_took_is_given_back_some_time_after_the_last_of_them(tmp_path):
    path = records(tmp_path / "own.npz")
    code = f"import {Path(__file__).stem} as t; t.idle({str(tmp_path)!r}, {str(path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()


def idle(folder, path):
    """Two jobs, the second one when the first is over and its memory is given back."""
    compute_child.IDLE_S = 0.3
    process, one, two = ComputeProcess(), taught(), taught(train={"method": "fm", "rounds": 3})
    process.fork_early()
    try:
        far = remote(process, Path(folder), Path(path))
        late = remote(process, Path(folder), Path(path), "1" * 16)  # met with the first job
        far.read_ahead(0.2)
        soon = computation(one, until_s=math.inf)  # else what follows waits for its whole time
        first = tensors(far.answer(soon))
        assert tensors(late.answer(soon)) == first
        keeper, branch = process._child, child(process)
        far.forget(one)
        late.read_ahead(0.2)  # what this meets is about to end
        assert psutil.wait_procs([branch], timeout=60)[1] == []
        assert process._child is keeper and keeper.poll() is None
        late.read_ahead(0.2)
        Path(path).unlink()  # the records are still there
        assert far.try_job(two, trains=True).refused == ""
        for device in (far, late):
            assert tensors(device.answer(computation(one))) == first
            assert device.answer(computation(two)).without == ""
    finally:
        process.close()
        process.end()


@pytest.mark.parametrize(("counts", "stored"), [((400, 3), True), ((3, 0), False)])
def test_what_was_read_is_handed_over_bit_for_bit(counts, stored):
    chance = np.random.default_rng(3)
    given = [
        Records(
            chance.normal(size=(count, 2, 300)).astype(np.float32),
            np.arange(count, dtype=np.int64),
            chance.normal(size=(count, 7)).astype(np.float32) if stored else None,
        )
        for count in counts
    ]
    found = read_in_fork(lambda: tuple(given), 60.0)
    for one, other in zip(given, found, strict=True):
        assert (one.x.tobytes(), one.x.shape) == (other.x.tobytes(), other.x.shape)
        assert one.y.tobytes() == other.y.tobytes()
        assert one.places.tobytes() == other.places.tobytes()
        assert (one.stored is None) == (other.stored is None)


def test_a_reading_that_ends_its_process_never_ends_or_fails_is_reported():
    def outlived():
        if not os.fork():
            time.sleep(5)  # holds the pipe
        os._exit(0)

    def no_records():
        raise RecordsError("there are too many")

    def no_column():
        raise DataError("no such column", where="x", fix="y")

    for read, limit_s in (
        (lambda: os.kill(os.getpid(), signal.SIGKILL), 60.0),
        (lambda: os._exit(0), 60.0),
        (sys.exit, 60.0),
        (no_records, 60.0),
        (lambda: time.sleep(3600), 0.1),
        (outlived, 0.2),
    ):
        assert isinstance(read_in_fork(read, limit_s), RecordsError)
    with pytest.raises(DataError) as caught:  # a fault of form
        read_in_fork(no_column, 60.0)
    assert not isinstance(caught.value, RecordsError)


@pytest.mark.parametrize("size_bytes", [0, 1, 1 << 20])
def test_a_message_is_read_whole_and_no_further(size_bytes):
    ours, theirs = Pipe()
    sent = os.urandom(size_bytes)
    with ours, theirs, ThreadPoolExecutor(1) as sender:
        sender.map(theirs.send_bytes, [sent, b"next"])
        assert (receive(ours), receive(ours)) == (sent, b"next")


@pytest.mark.parametrize("cut", [b"", b"\0\0", b"\0\0\0\x08half", b"\xff" * 4 + b"\0" * 4])
def test_a_message_that_is_cut_off_is_none(cut):
    ours, theirs = Pipe()
    with ours:
        with theirs:
            os.write(theirs.fileno(), cut)
        with pytest.raises(EOFError):
            receive(ours)
