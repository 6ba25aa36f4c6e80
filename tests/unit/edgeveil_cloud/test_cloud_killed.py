"""A cloud that is killed anywhere goes on at its last commit, and ends as it would have."""

from __future__ import annotations

import multiprocessing
import random
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from cloud_life import ACKED, keys, live
from round_kit import job, public_keys

from edgeveil.jobs import compile_job
from edgeveil.protocol.tensors import unpack_tensors
from edgeveil_cloud.store import Store

pytestmark = pytest.mark.slow

KILLS = 40
EXCHANGES = len(compile_job(job()).exchanges)
FORK = multiprocessing.get_context("fork")  # lives begin with everything imported


def prepared(folder: Path) -> str:
    keys(folder)
    store = Store(f"sqlite:///{folder / 'cloud.sqlite'}")
    store.set_enrolled(public_keys(4))
    wanted = job()
    entry = store.submit_job(wanted.job, wanted.canonical(), wanted.digest())
    store.close()
    return entry.id


def life(folder: Path, entry: str, calls: int | None) -> int:
    """The exit code of one life."""
    child = FORK.Process(target=live, args=(folder, entry, calls))
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode


def looked_at(folder: Path, entry: str, before: int) -> int:
    """Check what every moment must leave intact; the last committed exchange."""
    store = Store(f"sqlite:///{folder / 'cloud.sqlite'}")
    exchanges = store.exchanges(entry)
    done = len(exchanges)
    assert [one.index for one in exchanges] == list(range(1, done + 1))
    assert done >= before
    last = store.last_commit(entry)
    assert (last.index if last else 0) == done
    if last is not None:
        assert all(np.isfinite(a).all() for a in unpack_tensors(last.state).values())
    for index in range(1, done + 1):
        assert store.round_key(entry, index, 1) is None
    acked = (folder / ACKED).read_bytes() if (folder / ACKED).exists() else b""
    digests = [acked[k : k + 32] for k in range(0, len(acked), 32)]
    assert all(store.open_batch(entry, 1, 1, digest) is None for digest in digests)
    committed = [e for e in store.events_after(0, entry) if e.type == "exchange_committed"]
    assert [e.data["exchange"] for e in committed] == list(range(1, done + 1))
    beside = {ACKED, "cloud.key", "cloud.pub", "proxy.pub"}
    names = {path.name for path in folder.iterdir()} - beside
    assert {name.removesuffix("-wal").removesuffix("-shm") for name in names} == {"cloud.sqlite"}
    store.close()
    return done


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, bytes, bytes]:
    """Calls in a whole life, and the state and the model it ends with."""
    for name in ("warm", "measured"):  # the first life imports what all others begin with
        folder = tmp_path_factory.mktemp(name) / "cloud"
        entry = prepared(folder)
        calls = live(folder, entry, None)
    store = Store(f"sqlite:///{folder / 'cloud.sqlite'}")
    last, release = store.last_commit(entry), store.release(entry)
    assert last is not None and release is not None
    store.close()
    return calls, last.state, release.safetensors


def test_killed_anywhere_it_goes_on_at_the_last_committed_round(
    tmp_path: Path, undisturbed: tuple[int, bytes, bytes]
) -> None:
    calls, state, model = undisturbed
    chance, kills = random.Random(1), Counter[int]()  # by the exchanges committed by then
    while kills.total() < KILLS:
        folder = tmp_path / f"after-{kills.total()}"
        entry, done = prepared(folder), 0
        while (code := life(folder, entry, chance.randrange(1, calls * 2 // 3))) != 0:
            assert code == -signal.SIGKILL
            done = looked_at(folder, entry, done)
            kills[done] += 1
        assert looked_at(folder, entry, done) == EXCHANGES
        store = Store(f"sqlite:///{folder / 'cloud.sqlite'}")
        assert store.job(entry).status == "completed"
        last, release = store.last_commit(entry), store.release(entry)
        assert last is not None and last.state == state
        assert release is not None and release.safetensors == model
        store.close()
    assert len(kills) >= EXCHANGES, "killed in too few places to tell anything"
