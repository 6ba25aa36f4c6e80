"""What the cloud's page says of the process itself."""

import time

from edgeveil.config.cloud import CloudSite
from edgeveil_cloud.pages.fleet import CloudFacts
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
