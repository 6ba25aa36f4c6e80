"""A process that is killed in the middle of a change: all of it stands afterwards, or nothing.

The driver ends itself with SIGKILL at the named point, so that no handler, buffer or `finally`
of its own can help.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgeveil.errors import CryptoError, PrivacyError
from edgeveil.privacy import ledger_chain
from edgeveil.privacy.gaussian_mechanism import gaussian_event
from edgeveil.privacy.ledger import Ledger, read_ledger
from edgeveil.privacy.policy import JobRequest, Limits, price

pytestmark = pytest.mark.slow

LINEAR = gaussian_event("linear", 2**24, 0.5, 30, grid_bits=24)
REQUEST = JobRequest("j", 1e-5, (LINEAR,) * 3)
WIDE = Limits(200, 500, 1e-2, 100)
STEPS = {
    "open": lambda ledger: ledger.open_job(REQUEST, WIDE),
    "first": lambda ledger: ledger.commit("j", 1, [LINEAR], b"first"),
    "second": lambda ledger: ledger.commit("j", 2, [LINEAR], b"second"),
    "close": lambda ledger: ledger.close_job("j"),
}
POINTS = {
    "before the commit": False,
    "before the head": True,
    "in the head": True,
    "after the head": True,
}  # and whether the change stands afterwards


def die(*_):
    """End this process at once."""
    signal.raise_signal(signal.SIGKILL)


def driver(path, step, point):
    """All steps up to `step`, and the end at `point` of it."""
    ledger = Ledger(path, "digits")
    for name, act in STEPS.items():
        if name == step:
            arm(ledger, point)
        act(ledger)
        if name == step:
            die()


def arm(ledger, point):
    if point == "before the commit":
        ledger._file.db.set_trace_callback(lambda text: text == "COMMIT" and die())
    elif point == "before the head":
        from edgeveil.privacy.ledger_chain import ChainHead

        ChainHead.save = die
    elif point == "in the head":  # the new file is written and does not yet stand in its place
        Path.replace = die


def killed(path, step, point):
    """The driver in a process of its own, which must not have survived."""
    code = f"import {Path(__file__).stem} as t; t.driver({str(path)!r}, {step!r}, {point!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("step", STEPS)
def test_a_killed_process_leaves_a_whole_change_or_none(tmp_path, step, point):
    path = tmp_path / "ledger.sqlite"
    killed(path, step, point)
    names = list(STEPS)
    stands = names[: names.index(step) + POINTS[point]]
    assert read_ledger(path).links == len(stands)
    check_and_go_on(Ledger(path, "digits"), stands)
    assert read_ledger(path).links == len(STEPS)


def check_and_go_on(ledger, stands):
    """What stands is priced and comes back as it was; then the job is played to its end."""
    released = "first" in stands
    paid = price(REQUEST.events if released else (), REQUEST.delta).training
    assert ledger.spent("j") == paid  # from the first release on, all that was reserved
    if "open" not in stands:
        with pytest.raises(PrivacyError, match="not open"):
            ledger.admit("j", [LINEAR])
    for round, name in enumerate(("first", "second"), 1):
        if "close" in stands:
            with pytest.raises(PrivacyError, match="forgotten"):
                ledger.recall("j", round)
        elif name in stands:
            receipt, payload = ledger.recall("j", round)
            assert (payload, receipt.covers(payload)) == (name.encode(), True)
        else:
            assert ledger.recall("j", round) is None
    for name, act in STEPS.items():
        if name not in stands:
            act(ledger)
    assert ledger.spent("j") == price(REQUEST.events, REQUEST.delta).training


def test_a_release_whose_head_could_not_be_written_is_in_it_before_it_is_recalled(
    tmp_path, monkeypatch
):
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path, "digits")
    STEPS["open"](ledger)
    before = path.with_suffix(".head").read_bytes()

    def full(*_, **__):
        raise CryptoError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(ledger_chain, "write_key", full)
        for act in (STEPS["first"], lambda held: held.recall("j", 1)):
            with pytest.raises(PrivacyError, match="head cannot be kept, the disk is full"):
                act(ledger)
    assert path.with_suffix(".head").read_bytes() == before
    assert ledger.recall("j", 1)[1] == b"first"
    assert path.with_suffix(".head").read_bytes() != before
    assert ledger.spent("j") == price(REQUEST.events, REQUEST.delta).training
