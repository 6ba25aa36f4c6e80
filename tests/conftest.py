"""For all tests."""

from __future__ import annotations

import signal

# A shell ignores Ctrl-C for what it starts in the background, and so would every process that
# tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
