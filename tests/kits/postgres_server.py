"""A private PostgreSQL server for tests: its own folder, a socket in it, no port."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

GIVEN = os.environ.get("EDGEVEIL_TEST_POSTGRES_URL", "")  # an empty database elsewhere
_START_S = 60


class PostgresServer:
    """Starts and stops one server; `url` is for `Store`."""

    def __init__(self, folder, programs, user):
        self._folder, self._programs, self._user = folder, programs, user
        self.url = f"postgresql://edgeveil@/postgres?host={folder}"

    def make(self):
        wanted = ["-A", "trust", "-U", "edgeveil", "-E", "UTF8", "--no-sync"]
        self._run("initdb", "-D", str(self._folder / "data"), *wanted)

    def start(self):
        options = f"-k {self._folder} -c listen_addresses='' -c fsync=off -c shared_buffers=16MB"
        self._ctl("start", "-w", "-o", options, "-l", str(self._folder / "log"))

    def stop(self):
        self._ctl("stop", "-w", "-m", "immediate")

    def restart(self):
        self._ctl("restart", "-w", "-m", "immediate", "-l", str(self._folder / "log"))

    def kill(self):
        pid = int((self._folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)

    def _ctl(self, what, *more):
        self._run("pg_ctl", what, "-D", str(self._folder / "data"), *more)

    def _run(self, program, *arguments):
        env = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
        quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        where = {"cwd": self._folder, "user": self._user, "timeout": _START_S}
        command = [self._programs / program, *arguments]
        subprocess.run(command, check=True, env=env, **where, **quiet)


def _programs():
    found = shutil.which("initdb")
    if found:
        return Path(found).parent
    newest = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: p.parts[-3])
    return newest[-1].parent if newest else None


def _other_user():
    """Return a user to run as, since the server refuses root; None unless root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)


@contextmanager
def postgres_server():
    """Yield a running server; skips the test if PostgreSQL is not installed."""
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL's programs (initdb, pg_ctl) are not installed")
    folder, user = Path(tempfile.mkdtemp(prefix="edgeveil-pg-")), _other_user()
    if user is not None:
        shutil.chown(folder, user)
    server = PostgresServer(folder, programs, user)
    try:
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def empty(url):
    metadata = sa.MetaData()
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    metadata.reflect(engine)
    metadata.drop_all(engine)
    engine.dispose()
