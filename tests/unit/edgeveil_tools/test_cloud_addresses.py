"""The cloud's control over a Unix socket and over TLS, by tokens and by certificates."""

import json
from functools import partial
from pathlib import Path

import pytest

from edgeveil.config.site_files import load_site
from edgeveil.errors import ConfigError, UsageError
from edgeveil.transport import listener
from edgeveil.transport.listener import ListenAt
from edgeveil_cloud.http_guard import Scope
from edgeveil_tools.cli import main
from edgeveil_tools.cloud_client import Cloud, CloudAway, get_json
from tests.kits.certificates import Authority
from tests.kits.cloud_control import served


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "authority")


def tls_at(authority, *, clients):
    ca = authority.cert_file if clients else None
    return ListenAt("127.0.0.1", tls=listener.server_context(*authority.issue("127.0.0.1"), ca))


def test_a_unix_socket_serves_library_and_command_line(tmp_path, capsys, monkeypatch):
    at = ListenAt(socket=tmp_path / "cloud.sock")
    with served(tmp_path, at) as (url, store):
        job = store.submit_job("a", b"", bytes(32)).id
        token = tmp_path / "http-read.token"
        assert [one["id"] for one in Cloud(url, token).list()] == [job]
        assert Cloud(url, token).status() == {"enrolled": 3}
        assert "process_cpu_seconds_total" in Cloud(url, token).metrics()
        assert get_json(url, "/healthz") == {"status": "ok"}
        options = ["--cloud", url, "--token-file", str(token)]
        assert main(["job", "show", "--json", *options]) == 0
        assert json.loads(capsys.readouterr().out)["jobs"][0]["id"] == job
        monkeypatch.setenv("EDGEVEIL_CLOUD", url)
        monkeypatch.setenv("EDGEVEIL_TOKEN_FILE", str(tmp_path / "http.token"))
        assert main(["job", "cancel", job]) == 0
        assert store.job(job).status == "cancelled"
        with pytest.raises(UsageError):
            Cloud(url, "t" * 43).list()
    with pytest.raises(CloudAway):
        Cloud(url, token).list()


def test_certificates_stand_for_scopes_and_a_token_for_more(tmp_path, authority, monkeypatch):
    clients = {"watcher": Scope.READ, "desk.example": Scope.ADMIN}
    with served(tmp_path, tls_at(authority, clients=True), clients) as (url, store):
        job = store.submit_job("a", b"", bytes(32)).id

        def cloud(name, token=None):
            cert_file, key_file = authority.issue(name)
            connect = partial(Cloud, url, token, ca_file=authority.cert_file)
            return connect(cert_file=cert_file, key_file=key_file)

        assert [one["id"] for one in cloud("watcher").list()] == [job]
        with pytest.raises(UsageError):
            cloud("watcher").cancel(job)
        with pytest.raises(UsageError):
            cloud("stranger").list()
        assert len(cloud("stranger", tmp_path / "http-read.token").list()) == 1
        assert store.job(job).status == "queued"
        assert cloud("watcher", tmp_path / "http.token").cancel(job)["status"] == "cancelled"
        other = store.submit_job("a", b"", bytes(32)).id
        assert cloud("desk.example").cancel(other)["status"] == "cancelled"
        monkeypatch.setenv("EDGEVEIL_CLOUD", url)
        monkeypatch.setenv("EDGEVEIL_CA_FILE", str(authority.cert_file))
        for name, file in zip(("CERT", "KEY"), authority.issue("watcher"), strict=True):
            monkeypatch.setenv(f"EDGEVEIL_{name}_FILE", str(file))
        assert main(["job", "show"]) == 0


def test_a_cloud_without_a_valid_certificate_gets_no_token(tmp_path, authority):
    received = []
    with served(tmp_path, tls_at(authority, clients=False)) as (url, store):
        store.jobs = lambda: received.append(1) or ()
        for others in (None, Authority(tmp_path / "others").cert_file):
            with pytest.raises(UsageError):
                Cloud(url, tmp_path / "http.token", ca_file=others).list()
        assert received == []
        assert Cloud(url, tmp_path / "http.token", ca_file=authority.cert_file).list() == []
        assert received == [1]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("http://127.0.0.1:1", {"ca_file": Path("ca")}),
        ("unix:/x", {"cert_file": Path("c")}),
        ("ftp://127.0.0.1", {}),
        ("http://127.0.0.1:1", {}),
        ("https://127.0.0.1:1", {"cert_file": Path("absent")}),
    ],
)
def test_addresses_that_cannot_be_asked_are_refused(url, options):
    with pytest.raises(UsageError):
        Cloud(url, **options)


SITE = """cloud:
  broker: {{url: "mqtt://127.0.0.1:1883"}}
  proxy_key_file: proxy.pub
  http: {http}
"""


@pytest.mark.parametrize(
    ("key", "http"),
    [
        ("http.port", "{socket: a.sock, port: 8701}"),
        ("http.socket_group", "{socket_group: users}"),
        ("http", "{clients: [{name: a, scope: read}]}"),
        ("http.clients[0].scope", "{clients: [{name: a, scope: root}]}"),
        ("http.tls.key_file", "{tls: {cert_file: a}}"),
        (
            "http",
            "{tls: {cert_file: a, key_file: b, client_ca_file: c},"
            " clients: [{name: a, scope: read}, {name: a, scope: admin}]}",
        ),
    ],
)
def test_a_site_file_that_mixes_ways_to_listen_is_refused(tmp_path, key, http):
    path = tmp_path / "cloud.yaml"
    path.write_text(SITE.format(http=http))
    with pytest.raises(ConfigError) as caught:
        load_site(path)
    assert f"cloud.{key}" in str(caught.value)
