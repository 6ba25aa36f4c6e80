"""The owner's page of a device: who gets in, what it shows, and what it takes."""

import http.client
import json
from contextlib import closing, contextmanager

import pytest
from pydantic import ValidationError

from edgeveil.config.edge import LoopbackHttp
from edgeveil_edge import page as page_module
from edgeveil_tools.cli import main
from tests.unit.edgeveil_edge.edge_kit import own_site
from tests.unit.edgeveil_edge.test_conditions import WELL
from tests.unit.edgeveil_edge.test_edge_control import running, written

OWN = {"X-EdgeVeil": "1"}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A device with a page at any free port, whose watchers are told at once."""
    monkeypatch.setattr(page_module, "LOOK_S", 0.05)
    page = LoopbackHttp.model_construct(host="127.0.0.1", port=0)
    own = own_site(tmp_path, conditions={"charging": True, "max_load": 99.0})
    return own.model_copy(update={"page": page})


class Client:
    def __init__(self, process):
        self.page, self.cookie = process._page, ""
        self.port = int(process._page._server.url.rpartition(":")[2])

    @contextmanager
    def asked(self, method, path, body=b"", headers=()):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, body, {"Cookie": self.cookie, **dict(headers)})
        answer = connection.getresponse()
        if set_cookie := answer.headers["Set-Cookie"]:
            self.cookie = set_cookie.partition(";")[0]
        with closing(connection), closing(answer):
            yield answer

    def get(self, path, **headers):
        with self.asked("GET", path, headers=headers) as answer:
            return answer.status, answer.read(), answer.headers

    def post(self, path, body=b"", headers=()):
        with self.asked("POST", path, body, {**OWN, **dict(headers)}) as answer:
            return answer.status

    def log_in(self):
        ticket = self.page.way_in().partition("#ticket=")[2]
        assert self.post("/login", json.dumps({"ticket": ticket}).encode()) == 200

    @contextmanager
    def events(self):
        with self.asked("GET", "/events") as answer:
            assert answer.status == 200
            lines = iter(answer.readline, b"")
            yield (json.loads(line[6:]) for line in lines if line.startswith(b"data: "))


def opened(own, work, box=WELL):
    return running(own, box, lambda process: work(Client(process), process))


def test_a_stranger_sees_an_empty_page_and_nothing_of_the_device(own):
    def work(client, process):
        status, text, headers = client.get("/")
        assert status == 200 and own.name.encode() not in text
        assert process.device.id.encode() not in text
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert json.loads(client.get("/session")[1]) == {"logged_in": False}
        assert client.get("/events")[0] == 401
        for path in ("/pause", "/resume", "/rollback", "/logout"):
            assert client.post(path) == 401
        assert not process.presence.paused

    opened(own, work)


def test_the_printed_address_logs_in_once_and_the_session_ends_with_its_streams(own, capsys):
    config = written(own)

    def work(client, _process):
        assert main(["edge", "status", "--page", "--config", str(config)]) == 0
        printed = capsys.readouterr().out.strip()
        address, ticket = printed.split("#ticket=")
        assert address == f"http://127.0.0.1:{client.port}/"
        for wrong in (b"", b"[]", b"{", b"{}", b"[" * 900):
            assert client.post("/login", wrong) == 400
        assert client.post("/login", b" " * 1000) == 413
        assert client.post("/login", b'{"ticket": "x"}') == 401 and client.cookie == ""
        shown = json.dumps({"ticket": ticket}).encode()
        with client.asked("POST", "/login", shown, OWN) as answer:
            assert "HttpOnly; SameSite=Strict" in answer.headers["Set-Cookie"]
        assert client.post("/login", shown) == 401  # once
        with client.events() as values:
            assert next(values)["name"] == own.name
            assert client.post("/logout") == 200
            assert list(values) == []

    opened(own, work)


def test_no_other_page_moves_or_reads_the_device(own):
    def work(client, process):
        client.log_in()
        for headers in (
            {"Host": "evil.example"},
            {"Sec-Fetch-Site": "same-site"},  # a page of another port of this machine
            {"Sec-Fetch-Site": "cross-site"},
            {"Origin": "http://127.0.0.1:1"},
            {"Origin": "null"},
            {"X-EdgeVeil": ""},
        ):
            assert client.post("/pause", headers=headers) == 403
            assert not process.presence.paused
        for path in ("/", "/events", "/session"):
            assert client.get(path, Host="evil.example")[0] == 403
        assert client.get("/events", **{"Sec-Fetch-Site": "same-site"})[0] == 401
        for move, headers in (("pause", {}), ("resume", {"Sec-Fetch-Site": "same-origin"})):
            assert client.post(f"/{move}", headers=headers) == 200
            assert process.presence.paused is (move == "pause")

    opened(own, work)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "::", "box.example", ""])
def test_no_other_address_than_a_loopback_one_is_taken(host):
    with pytest.raises(ValidationError):
        LoopbackHttp(host=host)
