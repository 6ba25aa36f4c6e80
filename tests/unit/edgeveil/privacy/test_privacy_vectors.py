"""What devices wrote and drew: old ledgers read as ever, and old questions get their bits."""

import hashlib
import json
import sqlite3
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from edgeveil.crypto.keys import NoiseKey
from edgeveil.privacy.derived import NoiseContext, noise_by_context
from edgeveil.privacy.events import event_from_dict, to_dict
from edgeveil.privacy.ledger import read_ledger
from edgeveil.privacy.ledger_chain import PricedAnswer
from edgeveil.privacy.policy import JobRequest
from edgeveil.privacy.sampler import discrete_gaussian, discrete_laplace

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "privacy.json").read_text())
NOISE = VECTORS["noise"]
KEY = NoiseKey.from_bytes(bytes(range(32)))


def stream():
    return noise_by_context(KEY)(NoiseContext("pictures", "4a" * 16, 3, bytes(32)))


def totals():
    n = np.arange(12, dtype=np.int64)
    square = n.reshape(3, 4)
    return (
        n, n, square, n.astype(np.int32), n / 8, np.arange(24)[::2], np.empty((0, 4)),
        np.asfortranarray(square), n.astype(">i8"),
    )  # fmt: skip


@pytest.mark.parametrize("name", NOISE)
def test_a_question_gets_the_bits_it_always_got(name):
    event, source, found = event_from_dict(NOISE[name]["event"]), stream(), hashlib.sha256()
    for total in totals():
        bound = source.bound(event, total)
        for count in (1, 63, 5000, 0, 8):
            found.update(bound(count))
        found.update(source(7))
    n = np.arange(12)
    found.update(discrete_gaussian(2**50 + 2, (12,), source.bound(event, n)).tobytes())
    found.update(discrete_laplace(Fraction(2**20, 3), (12, 2), source.bound(event, n)).tobytes())
    assert found.hexdigest() == NOISE[name]["sha256"]


def test_draws_by_a_named_law_get_the_bits_they_always_got():
    source, found = stream(), hashlib.sha256()
    for index in range(300):
        bound = source.bound("orders", np.full(1 + index % 7, index))
        found.update(bound(100 + index * 37))
    found.update(source(10_000))
    assert found.hexdigest() == VECTORS["orders_sha256"]


def test_what_a_ledger_writes_never_changes():
    events = tuple(event_from_dict(one["event"]) for one in NOISE.values())
    request = JobRequest("4a" * 16, 1e-5, (*events, events[2]))
    assert hashlib.sha256(request.to_json().encode()).hexdigest() == VECTORS["request_sha256"]
    body = PricedAnswer.body(events, bytes(32))
    assert hashlib.sha256(body.encode()).hexdigest() == VECTORS["release_sha256"]


def test_an_old_ledger_reads_as_it_was_written(tmp_path):
    old = VECTORS["ledger"]
    path = tmp_path / "ledger.sqlite"
    for name in ("key", "head"):
        path.with_suffix(f".{name}").write_text(old[name])
        path.with_suffix(f".{name}").chmod(0o600)
    with sqlite3.connect(path) as db:
        for table in old["tables"]:
            db.execute(table)
        links = [(*link[:-1], bytes.fromhex(link[-1])) for link in old["links"]]
        db.executemany("INSERT INTO links VALUES (?, ?, ?, ?, ?, ?, ?)", links)
        payloads = [(number, bytes.fromhex(payload)) for number, payload in old["payloads"]]
        db.executemany("INSERT INTO payloads VALUES (?, ?)", payloads)
    db.close()
    jobs = read_ledger(path).account("pictures")
    kinds = {event["event"]["what"]: event["event"] for event in NOISE.values()}
    for job, is_open in (("4a" * 16, True), ("4b" * 16, False)):
        assert jobs[job].is_open == is_open
        assert jobs[job].events
        assert all(to_dict(event) == kinds[event.what] for event in jobs[job].events)
