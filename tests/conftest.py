"""For all tests."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
from collections.abc import Iterator

import pytest

from edgeveil import own_process

# A shell ignores Ctrl-C for what it starts in the background, and so would every process that
# tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# And nohup ignores the hang-up of a terminal.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Workers share the cores: a thread that has nothing to do sleeps, and does not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function as a test, for two minutes at most."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    asyncio.run(asyncio.wait_for(test(**given), 120))
    return True


@pytest.fixture(scope="session", autouse=True)
def ports_of_this_worker() -> Iterator[None]:
    """Test processes beside each other choose from different ones: a server may take up its port
    long after it was chosen."""
    from edgeveil_tools.site import brokers

    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(brokers, "_SERVER_PORTS", brokers._SERVER_PORTS[number::count])
        yield


@pytest.fixture
def own_process_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """This test's process is one for code of others: no further one is started for it."""
    monkeypatch.setattr(own_process, "_own", True)


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The public encoders, hardly trained, where the jobs that name them look."""
    from edgeveil.parts.features import cached_backbone
    from edgeveil_tools.backbone import command as backbone

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(backbone, "STEPS", 1)
        patch.setattr(backbone, "DRAWINGS", 300)
        backbone.train(cached_backbone("digits"))
        yield
