"""What the cloud's page says of the process itself, and of rounds."""

import time
from unittest.mock import Mock

from edgeveil.sites.cloud import CloudSite
from edgeveil_cloud.pages.fleet import CloudFacts, rounds_of
from edgeveil_cloud.store_tables import StoredEvent
from tests.kits.certificates import Authority


def test_what_ends_is_told_with_when_and_a_file_that_cannot_be_read_with_why(tmp_path):
    authority = Authority(tmp_path)
    cert_file, key_file = authority.issue("desk")
    broken = tmp_path / "broken.crt"
    broken.write_text("no certificate")
    site = CloudSite.model_validate(
        {
            "broker": {"url": "mqtts://b:1", "ca_file": str(authority.cert_file)},
            "proxy_key_file": str(key_file),
            "state_dir": str(tmp_path),
            "http": {"tls": {"cert_file": str(cert_file), "key_file": str(key_file)}},
        }
    )
    facts = CloudFacts(site, {}, None)
    told = {one["what"]: one for one in facts.endings()}
    assert told.keys() == {"http.tls.cert_file", "broker.ca_file"}
    assert all(0 < one["ends_at"] - time.time() < 7200 for one in told.values())
    cert_file.write_bytes(broken.read_bytes())
    first = facts.endings()[0]  # what needs somebody comes first
    assert (first["what"], first["ends_at"]) == ("http.tls.cert_file", None)
    assert "PEM" in first["problem"]
    disk = facts.disk()
    assert 0 < disk["free"] <= disk["total"]
    assert disk["own"] >= cert_file.stat().st_size


def test_links_are_told_by_cell():
    state = {"connected": False, "connections": 2, "unacknowledged": 3}
    session = Mock(bytes={"in": 5, "out": 7}, **state)
    (link,) = CloudFacts(Mock(), {"north": session}, None).links()
    assert link == {
        "cell": "north",
        "up": False,
        "connections": 2,
        "waiting": 3,
        "bytes_in": 5,
        "bytes_out": 7,
    }


def test_rounds_are_told_by_attempt_the_newest_first():
    told = [
        ("a", "broadcast", {"kind": "round", "selected": 6, "round": "round 1", "cell": "n"}),
        ("b", "broadcast", {"kind": "job", "selected": 9, "round": "job"}),
        ("a", "broadcast", {"kind": "round", "selected": 4, "round": "round 1", "cell": "s"}),
        ("a", "round_repeated", {"answers": {"uploaded": 2, "declined": 1, "void": {"late": 2}}}),
        ("a", "broadcast", {"kind": "round", "selected": 10, "round": "round 1"}),
        ("a", "exchange_committed", {"number": 1, "uploads": 9, "declined": 1, "refused": {}}),
        ("a", "broadcast", {"kind": "round", "selected": 10, "round": "round 2"}),
    ]
    events = [StoredEvent(n, job, float(n), kind, data) for n, (job, kind, data) in enumerate(told)]
    under_way, counted, repeated = rounds_of(events)
    assert (under_way["outcome"], under_way["round"]) == ("under way", "round 2")
    assert (counted["outcome"], counted["answered"], counted["declined"]) == ("counted", 9, 1)
    assert (repeated["selected"], repeated["answered"]) == (10, 2)
    assert (repeated["outcome"], repeated["refused"]) == ("repeated", {"late": 2})
