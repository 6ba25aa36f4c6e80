"""What the cloud's page says of the process itself."""

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
    (table,) = facts.endings()["parts"]
    assert {row[0] for row in table["rows"]} == {"http.tls.cert_file", "broker.ca_file"}
    assert all(row[1].endswith("UTC") for row in table["rows"])
    assert {one["tone"] for one in facts.endings()["said"]} == {"warn"}  # they end in two hours
    cert_file.write_bytes(broken.read_bytes())
    first, *_ = facts.endings()["said"]  # what needs somebody comes first
    assert (first["tone"], first["text"].split(":")[0]) == ("bad", "http.tls.cert_file")
    assert "PEM" in first["text"]
    (disk,) = facts.disk()["said"]
    assert "free of" in disk["text"]
    (said,) = facts.links({"bad_signature": 2, "late": 0})["after"]
    assert said["text"] == "Messages refused since the start: 2 bad signature."
