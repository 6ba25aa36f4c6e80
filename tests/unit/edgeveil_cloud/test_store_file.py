"""What is special about the store as a file: it survives, it is private, it forgets keys."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import RoundRecord, StoreError

SECRET = b"\xa5SECRET-ROUND-KEY-0123456789ABCDE"

CRASHING = """
import os, signal, sys
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import RoundRecord
store = Store(sys.argv[1])
job = store.submit_job("crash", b"c", bytes(32)).id
store.set_status(job, "running")
store.put_round_key(job, 1, 1, bytes(32))
store.commit_round(job, RoundRecord(1, "train", 1, 1, 5), b"state one")
store.put_round_key(job, 2, 1, bytes(range(32)))
print(job, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def url(tmp_path):
    return f"sqlite:///{tmp_path}/state/cloud.db"


def test_a_killed_process_resumes_at_its_last_commit(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CRASHING, url(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    job = done.stdout.strip()
    store = Store(url(tmp_path))
    assert store.next_jobs()[0].id == job
    assert (store.last_commit(job).index, store.last_commit(job).state) == (1, b"state one")
    assert store.round_key(job, 2, 1) == bytes(range(32))
    assert store.round_key(job, 1, 1) is None
    store.close()


def files(tmp_path):
    return list((tmp_path / "state").iterdir())


def on_disk(tmp_path):
    return any(SECRET in path.read_bytes() for path in files(tmp_path))


@pytest.mark.parametrize("end", ["commit", "failed"])
def test_a_round_key_is_on_disk_until_the_round_ends_and_nowhere_after(tmp_path, end):
    store = Store(url(tmp_path))
    job = store.submit_job("a", b"", bytes(32)).id
    store.set_status(job, "running")
    store.put_round_key(job, 1, 1, SECRET)
    assert on_disk(tmp_path)
    if end == "commit":
        store.commit_round(job, RoundRecord(1, "train", 1, 1, 5), b"")
    else:
        store.set_status(job, "failed")
    assert not on_disk(tmp_path)
    store.close()
    assert not on_disk(tmp_path)


def test_only_the_owner_can_read_the_files(tmp_path):
    before = os.umask(0)
    try:
        store = Store(url(tmp_path))
        store.append_event(None, "x", {})
        modes = {path.name: path.stat().st_mode & 0o777 for path in files(tmp_path)}
        store.close()
    finally:
        os.umask(before)
    assert modes
    assert set(modes.values()) == {0o600}


def test_a_full_disk_is_told_as_such_where_sqlite_only_cannot_open_a_file(tmp_path, monkeypatch):
    Store(url(tmp_path)).close()
    (tmp_path / "state" / "cloud.db-wal").mkdir()  # so that SQLite cannot open its log
    for full in (True, False):
        room = SimpleNamespace(f_bavail=not full, f_files=0)
        monkeypatch.setattr("edgeveil.storage.os.statvfs", lambda _folder, room=room: room)
        with pytest.raises(StoreError) as caught:
            Store(url(tmp_path))
        assert ("is full" in caught.value.what) is full
        assert ("free some space" in caught.value.fix) is full


def test_commits_wait_for_the_disk(tmp_path):
    store = Store(url(tmp_path))
    with store._database.engine.connect() as db:
        assert db.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert db.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert db.exec_driver_sql("PRAGMA secure_delete").scalar() == 1
    store.close()


def test_a_file_that_is_no_store_is_refused(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "cloud.db").write_bytes(b"this is no database at all" * 100)
    with pytest.raises(StoreError, match="not a database"):
        Store(url(tmp_path))


def test_a_bad_url_never_repeats_its_password(tmp_path):
    for bad in ("postgresql://me:hunter2@127.0.0.1:1/x", "nonsense://me:hunter2@h/x", "::hunter2"):
        with pytest.raises(StoreError) as caught:
            Store(bad)
        assert "hunter2" not in str(caught.value)
        assert caught.value.fix


def test_secrets_do_not_show_in_repr(tmp_path):
    store = Store(url(tmp_path))
    job = store.submit_job("a", b"CANONICAL", bytes(32))
    store.put_release(job.id, b"ONNXBYTES", b"TENSORS")
    assert "CANONICAL" not in repr(job)
    assert "ONNXBYTES" not in repr(store.release(job.id))
    store.close()
