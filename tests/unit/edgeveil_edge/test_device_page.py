"""The owner's page of a device: who gets in, what it shows, and what it takes."""

import http.client
import json
from contextlib import contextmanager

import pytest
from pydantic import ValidationError

from edgeveil.config.edge import LoopbackHttp
from edgeveil.crypto.keys import SigningKey
from edgeveil_edge import page as page_module
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_tools.cli import main
from tests.unit.edgeveil_edge.edge_kit import site
from tests.unit.edgeveil_edge.test_conditions import WELL
from tests.unit.edgeveil_edge.test_edge_control import running, written

OWN = {"X-EdgeVeil": "1"}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A device with a page at any free port, whose watchers are told at once."""
    monkeypatch.setattr(page_module, "LOOK_S", 0.05)
    for peer in ("cloud", "proxy"):
        SigningKey.generate().public().save(tmp_path / f"{peer}.pub")
    DeviceIdentity.load_or_create(tmp_path)
    page = LoopbackHttp.model_construct(host="127.0.0.1", port=0)
    return site(tmp_path, conditions={"charging": True, "max_load": 99.0}).model_copy(
        update={"page": page}
    )


class Client:
    """A browser without a screen: keeps the cookie and says where it is."""

    def __init__(self, process):
        self.page = process._page
        self.port = int(process._page._server.url.rpartition(":")[2])
        self.cookie = ""

    def ask(self, method, path, body=b"", headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        sent = {"Cookie": self.cookie} if self.cookie else {}
        connection.request(method, path, body or None, {**sent, **(headers or {})})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if set_cookie := answer.headers["Set-Cookie"]:
            self.cookie = set_cookie.partition(";")[0]
        told = json.loads(text) if "json" in answer.headers["Content-Type"] else text
        return answer.status, told, answer.headers

    def post(self, path, body=b"", **headers):
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        length = {"Content-Length": str(len(body))}
        status, told, _ = self.ask("POST", path, body, {**length, **OWN, **named})
        return status, told

    def log_in(self):
        ticket = self.page.way_in().partition("#ticket=")[2]
        assert self.post("/login", json.dumps({"ticket": ticket}).encode())[0] == 200

    @contextmanager
    def events(self):
        """The values of the stream, one after the other."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", "/events", headers={"Cookie": self.cookie})
        answer = connection.getresponse()
        assert answer.status == 200

        def values():
            while line := answer.readline():
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))

        try:
            yield values()
        finally:
            answer.close()
            connection.close()

    def state(self):
        with self.events() as values:
            return next(values)


def opened(own, work, box=WELL):
    """`work(client, process)` while the device runs."""
    return running(own, box, lambda process: work(Client(process), process))


def test_a_stranger_sees_an_empty_page_and_nothing_of_the_device(own):
    def work(client, process):
        status, text, headers = client.ask("GET", "/")
        assert status == 200 and own.name.encode() not in text
        assert process.device.id.encode() not in text
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert client.ask("GET", "/session")[1] == {"logged_in": False}
        assert client.ask("GET", "/events")[0] == 401
        for path in ("/pause", "/resume", "/rollback", "/logout"):
            assert client.post(path)[0] == 401
        assert not process.presence.paused

    opened(own, work)


def test_the_printed_address_logs_in_once(own, capsys):
    config = written(own)

    def work(client, _process):
        assert main(["edge", "status", "--page", "--config", str(config)]) == 0
        printed = capsys.readouterr().out.strip()
        address, ticket = printed.split("#ticket=")
        assert address == f"http://127.0.0.1:{client.port}/"
        for wrong in (b"", b"[]", b"{", b"{}", b"[" * 900):
            assert client.post("/login", wrong)[0] == 400
        assert client.post("/login", b" " * 1000)[0] == 413
        assert client.post("/login", b'{"ticket": "x"}')[0] == 401 and client.cookie == ""
        shown = json.dumps({"ticket": ticket}).encode()
        _, _, headers = client.ask("POST", "/login", shown, OWN)
        assert "HttpOnly; SameSite=Strict" in headers["Set-Cookie"]
        assert client.post("/login", shown)[0] == 401  # once
        assert client.state()["name"] == own.name

    opened(own, work)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),  # a page of another port of this machine
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "null"}, 403),
        ({"X-EdgeVeil": ""}, 403),
    ],
)
def test_no_other_page_moves_the_device(own, headers, status):
    def work(client, process):
        client.log_in()
        assert client.ask("POST", "/pause", b"", {"Content-Length": "0", **OWN, **headers})[0] == (
            status
        )
        assert process.presence.paused is (status == 200)

    opened(own, work)


def test_another_name_or_page_reads_nothing(own):
    def work(client, _process):
        client.log_in()
        for path in ("/", "/events", "/session"):
            assert client.ask("GET", path, headers={"Host": "evil.example"})[0] == 403
        assert client.ask("GET", "/events", headers={"Sec-Fetch-Site": "same-site"})[0] == 401

    opened(own, work)


def test_a_stream_ends_with_its_session(own):
    def work(client, _process):
        client.log_in()
        with client.events() as values:
            next(values)
            assert client.post("/logout")[0] == 200
            assert list(values) == []

    opened(own, work)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "::", "box.example", ""])
def test_no_other_address_than_a_loopback_one_is_taken(host):
    with pytest.raises(ValidationError):
        LoopbackHttp(host=host)
