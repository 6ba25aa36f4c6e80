"""All that a whole fleet logs, at the finest level: no record, no name, no id, no key."""

import io
import json
import logging

import numpy as np
import pytest

from edgeveil import logs
from edgeveil.errors import DataError
from edgeveil_edge.compute import Computer
from tests.kits.fleet import Fleet, small_job

MARKER = "0.1234567"


@pytest.fixture
def heard():
    text, log = io.StringIO(), logging.getLogger(logs.OURS)
    handler, level = logging.StreamHandler(text), log.level
    handler.setFormatter(logs.formatter("json"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield text
    log.removeHandler(handler)
    log.setLevel(level)


def quoting(_site, _split_key, _share, _schema):
    raise DataError(f"raised ValueError: record 17 is [{MARKER}, 0.25]", where="own.py", fix="mend")


def failing(_site, _split_key, _share, _schema):
    raise ValueError(f"record 3 of box secret-9 is [{MARKER}]")


def test_a_run_with_broken_data_on_two_boxes(tmp_path, heard):
    consoles = []
    fleet = Fleet(tmp_path, 6, on_message=consoles.append)
    for box, load in zip(fleet.devices, (quoting, failing), strict=False):
        box.host._work._compute = Computer(box.site, box.host.identity.split_key, load)
    job = fleet.submit(small_job(round={"deadline_s": 20.0, "min_batch": 3, "grace_s": 1.0}))
    assert fleet.finish(job) == "completed"
    assert any(MARKER in line for line in consoles)  # the owner is told
    lines = [json.loads(line) for line in heard.getvalue().splitlines()]
    assert {"declined", "work_failed", "round_open", "broadcast"} <= {one["event"] for one in lines}
    text = heard.getvalue()
    hidden = [MARKER, "secret-", "record 17", "own.py"]
    hidden += [box.id for box in fleet.devices]
    hidden += [key.hex() for key in fleet.store.enrolled()]
    weights = fleet.store.release(job).safetensors
    hidden += [str(value) for value in np.frombuffer(weights[-64:], np.float32)]
    assert [word for word in hidden if word in text] == []
