"""For all tests."""

from __future__ import annotations

import signal

import pytest

from edgeveil import own_process

# A shell ignores Ctrl-C for what it starts in the background, and so would every process that
# tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def own_process_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """This test's process is one for code of others: no further one is started for it."""
    monkeypatch.setattr(own_process, "_own", True)
