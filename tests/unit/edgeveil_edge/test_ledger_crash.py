"""A device killed between its noise and its upload: paid once, and the same tensors come again.

Also where nothing was recorded yet: the noise is derived, so it is the same again.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from edge_kit import CENTRE, JOB_ID, PLAN, Device, Loader, Round

from edgeveil.privacy import ledger_chain
from edgeveil.privacy.ledger import read_ledger
from edgeveil.protocol.tensors import pack_tensors
from edgeveil_edge import round_work

pytestmark = pytest.mark.slow

HEX = JOB_ID.hex()
DRAWN = "drawn"  # what the killed process was about to commit
POINTS = ("before the commit", "before the head", "before the seal", "before the upload")


def die(*_):
    signal.raise_signal(signal.SIGKILL)


def driver(folder, point):
    device = Device(Path(folder)).knows(PLAN)

    def noted(segments):
        payload = pack_tensors(segments)
        (Path(folder) / DRAWN).write_bytes(payload)
        arm(device, point)
        return payload

    round_work.pack_tensors = noted
    device.answer(Round(PLAN, CENTRE, device.keys()))
    die()  # sealed, and nothing of it handed on


def arm(device, point):
    if point == "before the commit":
        device.ledger._file.db.set_trace_callback(lambda text: text == "COMMIT" and die())
    elif point == "before the head":
        ledger_chain.ChainHead.save = die
    elif point == "before the seal":
        round_work.seal_release = die


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_device_pays_once_and_sends_what_it_paid_for(tmp_path, point):
    code = f"import {Path(__file__).stem} as t; t.driver({str(tmp_path)!r}, {point!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    drawn = (tmp_path / DRAWN).read_bytes()
    read_ledger(tmp_path / "ledger.sqlite")
    committed = point != "before the commit"
    device = Device(tmp_path, Loader())
    held = device.ledger.recall(HEX, CENTRE)
    assert (held is not None and held[1] == drawn) is committed
    assert device.ledger.spent(HEX) == PLAN.spent(CENTRE if committed else 0).training
    again = Round(PLAN, CENTRE, device.keys(), attempt=2)
    centre = again.tensors(device.answer(again))["centre"]
    held = device.ledger.recall(HEX, CENTRE)
    assert centre[: PLAN.segments(again.round)[0].byte_count] in held[1]
    assert device.ledger.spent(HEX) == PLAN.quote().training
    assert held[1] == drawn  # committed or not: the same question has the same noise
    assert device.load.reads == (not committed)  # what was paid for is not computed anew
    assert read_ledger(tmp_path / "ledger.sqlite").links == 2
