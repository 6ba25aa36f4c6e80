import sqlite3
from contextlib import closing

import pytest

from edgeveil.protocol.messages import RoundId
from edgeveil.protocol.proxy_rounds import RoundUnmasked
from edgeveil.storage import StorageError
from edgeveil_proxy.spool import Spool
from tests.chaos.evidence import tap_spool, unmasked_choices

AT = RoundId(bytes(16), 1, 1)


def choices(path):
    return [one.question for one in unmasked_choices(path)]


def test_the_real_spool_under_the_tap_keeps_one_choice_and_stops_at_a_second(tmp_path):
    path = tmp_path / "spool.sqlite"
    with closing(Spool(path)) as spool:
        for _ in range(2):
            tap_spool(path)
            spool.store(RoundUnmasked(AT, b"a"))
        with pytest.raises(StorageError):
            spool.store(RoundUnmasked(AT, b"b"))
        spool.store(RoundUnmasked(RoundId(AT.job_id, 2, 1), b"c"))
    assert choices(path) == [b"a", b"c"]


@pytest.mark.parametrize("flaw", ["INSERT OR IGNORE INTO", "INSERT OR REPLACE INTO", "DELETE"])
def test_a_spool_that_takes_a_second_choice_or_forgets_the_first_is_seen(tmp_path, flaw):
    """What a spool would pass over, its machine has answered all the same."""
    path = tmp_path / "spool.sqlite"
    with closing(Spool(path)) as spool:
        tap_spool(path)
        spool.store(RoundUnmasked(AT, b"a"))
        with closing(sqlite3.connect(path)) as db, db:
            if flaw == "DELETE":
                db.execute("DELETE FROM unmasked")
            else:
                row = (AT.job_id, 1, 1, b"b")
                db.execute(f"{flaw} unmasked VALUES (?, ?, ?, ?)", row)
        if flaw == "DELETE":
            spool.store(RoundUnmasked(AT, b"b"))
    assert choices(path) == [b"a", b"b"]
