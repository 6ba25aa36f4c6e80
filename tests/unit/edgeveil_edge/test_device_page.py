"""The owner's page of a device: who gets in, what it shows, and what it takes."""

import http.client
import io
import json
import stat
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from edgeveil.crypto.keys import SigningKey
from edgeveil.data.schema import DataSchema, schema_metadata
from edgeveil.errors import UsageError
from edgeveil.evaluation.figures import ACCURACY, leading_text
from edgeveil.parts.models.heads import described
from edgeveil.privacy.laplace_mechanism import softmax_event
from edgeveil.privacy.ledger import LEDGER_FILE, read_ledger
from edgeveil.privacy.policy import JobRequest, Limits
from edgeveil.sites.edge import LoopbackHttp
from edgeveil_edge import page as page_module
from edgeveil_edge import spending
from edgeveil_edge.control import ask
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_edge.page import TOKEN_FILE
from edgeveil_edge.personal_model import PersonalModel, keep_personal
from edgeveil_tools.cli import main
from tests.unit.edgeveil_edge.edge_kit import final_model, site
from tests.unit.edgeveil_edge.test_conditions import WELL, replace
from tests.unit.edgeveil_edge.test_edge_control import running

OWN = {"X-EdgeVeil": "1"}
JOB = bytes(range(16))


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
        self.state_dir = process.site.state_dir
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
        token = (self.state_dir / TOKEN_FILE).read_text().strip()
        assert self.post("/login", json.dumps({"token": token}).encode())[0] == 200

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


# --- who gets in ---


def test_a_stranger_sees_an_empty_page_and_nothing_of_the_device(own):
    def work(client, process):
        status, text, headers = client.ask("GET", "/")
        assert status == 200 and own.name.encode() not in text
        assert process.device.id.encode() not in text
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert client.ask("GET", "/session")[1] == {"logged_in": False}
        for path in ("/events", "/model"):
            assert client.ask("GET", path)[0] == 401
        for path in ("/pause", "/resume", "/rollback", "/try", "/logout"):
            assert client.post(path)[0] == 401
        assert not process.presence.paused

    opened(own, work)


def test_the_token_is_the_owner_s_and_its_cookie_is_hidden_from_scripts(own):
    def work(client, _process):
        path = own.state_dir / TOKEN_FILE
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for wrong in ({"token": "x" * 43}, {"token": ""}, {"ticket": "x"}, {}, {"token": None}):
            assert client.post("/login", json.dumps(wrong).encode())[0] == 401
        for wrong in (b"", b"[]", b"{", b"[" * 900):
            assert client.post("/login", wrong)[0] in (400, 401)
        assert client.post("/login", b" " * 1000)[0] == 413
        assert client.cookie == ""
        token = json.dumps({"token": path.read_text()}).encode()
        _, _, headers = client.ask("POST", "/login", token, OWN)
        assert "HttpOnly; SameSite=Strict" in headers["Set-Cookie"]
        assert client.ask("GET", "/session")[1] == {"logged_in": True}
        assert client.post("/logout")[0] == 200
        assert client.ask("GET", "/session")[1] == {"logged_in": False}

    opened(own, work)


def test_a_token_that_others_can_read_lets_nobody_in(own):
    def work(client, _process):
        path = own.state_dir / TOKEN_FILE
        path.chmod(0o644)
        status, told = client.post("/login", json.dumps({"token": path.read_text()}).encode())
        assert (status, told["what"]) == (400, "can be read by others")

    opened(own, work)


def test_another_token_ends_what_the_one_before_let_in(own):
    def work(client, _process):
        client.log_in()
        path = own.state_dir / TOKEN_FILE
        before = path.read_text()
        with client.events() as values:
            next(values)
            path.unlink()
            assert list(values) == []
        assert client.post("/login", json.dumps({"token": before}).encode())[0] == 401
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.read_text() != before
        client.log_in()
        assert client.state()["name"] == own.name

    opened(own, work)


def test_the_printed_address_logs_in_once(own, capsys, tmp_path):
    config = tmp_path / "edge.yaml"
    config.write_text(
        f"""edge:
  name: kitchen
  broker: {{url: "mqtt://127.0.0.1:1"}}
  state_dir: {own.state_dir}
  cloud_key_file: {own.cloud_key_file}
  proxy_key_file: {own.proxy_key_file}
  data: {{name: bench, source: digits}}
"""
    )

    def work(client, _process):
        assert main(["edge", "status", "--page", "--config", str(config)]) == 0
        printed = capsys.readouterr().out.strip()
        address, ticket = printed.split("#ticket=")
        assert address == f"http://127.0.0.1:{client.port}/"
        shown = json.dumps({"ticket": ticket}).encode()
        assert [client.post("/login", shown)[0] for _ in range(2)] == [200, 401]
        assert client.state()["name"] == own.name

    opened(own, work)


def test_without_a_page_it_says_how_to_get_one(own):
    def work(_process):
        with pytest.raises(UsageError, match="has no page"):
            ask(own.state_dir, "page")
        assert not (own.state_dir / TOKEN_FILE).exists()

    running(own.model_copy(update={"page": None}), WELL, work)


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


def test_a_body_of_a_stranger_is_refused_before_it_is_read(own):
    def work(client, _process):
        head = {"Content-Length": str(1 << 23), **OWN}  # nothing of it is sent
        assert client.ask("POST", "/try", headers=head)[0] == 401
        client.log_in()
        assert (
            client.ask("POST", "/try", headers={**head, "Content-Length": str(1 << 25)})[0] == 413
        )

    opened(own, work)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "::", "box.example", ""])
def test_no_other_address_than_a_loopback_one_is_taken(host):
    with pytest.raises(ValidationError):
        LoopbackHttp(host=host)


def test_the_page_and_predictions_do_not_share_a_port(tmp_path):
    inference = {"http": LoopbackHttp(port=8711)}
    with pytest.raises(ValidationError, match="both listen on port 8711"):
        site(tmp_path, page={}, inference=inference)


# --- what it shows ---


def test_it_shows_what_the_ledger_says_the_conditions_and_the_release(own):
    event = softmax_event(10, 4.0)

    def work(client, process):
        ledger, jobs = process.device.ledger, [JOB.hex(), "ab" * 16]
        for job in jobs:
            ledger.open_job(JobRequest(job, 1e-5, (event,) * 3), Limits(10, 50, 1e-4, 100))
        for number, job in enumerate((jobs[0], jobs[0], jobs[1]), 1):
            ledger.commit(job, number, [event], b"noised")
        ledger.close_job(jobs[0])
        meta = {"job_id": jobs[0]}
        process.device.host.releases.install("boxed", final_model(), meta)
        client.log_in()
        state = client.state()
        assert (state["state"], state["connected"]) == ("waiting", False)
        assert state["waiting_for"] == ["charging: the box runs on battery"]
        assert state["wanted"] == {"charging": True, "max_load": 99.0}
        assert state["ledger"] == {"intact": True, "links": 6}
        spent = state["spent"]
        assert spent["inference"]["epsilon"] >= 3 * event.epsilon
        assert spent["left"]["max_inference_epsilon"] == pytest.approx(100 - 5 * event.epsilon)
        assert [one["open"] for one in spent["jobs"]] == [False, True]
        (kind,) = spent["jobs"][0]["kinds"]
        assert (kind["exchanges"], kind["count"], kind["status"]) == ("1 to 2", 2, "proven")
        ends = [point[2] for point in spent["course"]]
        assert ends == sorted(ends) and ends[-1] == spent["inference"]["epsilon"]
        assert state["names"] == {jobs[0]: "boxed"}
        release = state["release"]
        assert (release["version"], release["earlier"]) == ("0001-boxed", [])
        assert "path" not in release and not release["stale"]

    opened(own, work, replace(WELL, charge=(50.0, False)))


def test_the_ledger_is_read_when_it_changed_and_not_for_each_look(own, monkeypatch):
    reads = []

    def counted(path):
        reads.append(path)
        return read_ledger(path)

    def work(client, process):
        monkeypatch.setattr(spending, "read_ledger", counted)
        client.log_in()
        for links in (0, 1):
            assert [client.state()["ledger"]["links"] for _ in range(3)] == [links] * 3
            if not links:
                request = JobRequest(JOB.hex(), 1e-5, (softmax_event(10, 4.0),))
                process.device.ledger.open_job(request, Limits(10, 50, 1e-4, 100))
        assert len(reads) == 2

    opened(own, work)


def test_a_broken_ledger_is_told_and_the_page_goes_on(own):
    def work(client, process):
        client.log_in()
        with client.events() as values:
            assert next(values)["ledger"]["intact"]
            (own.state_dir / LEDGER_FILE).with_suffix(".head").unlink()
            broken = next(values)
        assert not broken["ledger"]["intact"] and broken["ledger"]["fix"]
        assert broken["name"] == own.name and broken["spent"] == {"course": []}

    opened(own, work)


def test_a_damaged_release_is_told(own):
    def work(client, process):
        client.log_in()
        release = process.device.host.releases.install("boxed", final_model(), {})
        release.path.write_bytes(b"other")
        assert "was changed after" in client.state()["release"]["problem"]

    opened(own, work)


def test_a_model_of_the_box_s_own_is_shown_with_what_it_was_made_of(own):
    def work(client, process):
        client.log_in()
        assert client.state()["personal"] is None
        release = process.device.host.releases.install("boxed", final_model(), {})
        scores = (0.1, 0.5, 0.75, 1.5, 0.5, 0.6, 0.4, 0.7)
        about = PersonalModel(release.version, release.digest, 40, 10, *scores)
        keep_personal(own.state_dir, b"graph", about)
        told = client.state()["personal"]
        assert (told["release"], told["of_release"]) == ("0001-boxed", True)
        assert (told["shared_accuracy"], told["personal_accuracy"]) == (0.5, 0.75)
        beside = {"largest_class_rate": 0.6, "balanced_accuracy": 0.4}
        assert told["shared_text"] == leading_text(ACCURACY, 0.5, beside)
        assert "always the largest class 0.600; balanced 0.700" in told["personal_text"]
        other = PersonalModel("0000-old", "ab" * 32, 40, 10, 0.1, 0.5, 0.75, 1.5, 0.5)
        keep_personal(own.state_dir, b"graph", other)
        assert not client.state()["personal"]["of_release"]
        (own.state_dir / "personal" / "about.json").write_text("[")
        assert client.state()["personal"] is None

    opened(own, work)


# --- what it takes ---


def test_a_pause_and_its_end_are_those_of_the_command(own):
    def work(client, process):
        client.log_in()
        with client.events() as values:
            assert next(values)["state"] == "running"
            assert client.post("/pause") == (200, {})
            assert next(values)["state"] == "paused"
            assert ask(own.state_dir, "status")["state"] == "paused"
            assert client.post("/resume") == (200, {})
            assert next(values)["state"] == "running"

    opened(own, work)


def test_going_back_to_the_release_before(own):
    def work(client, process):
        client.log_in()
        status, told = client.post("/rollback")
        assert status == 400 and "no earlier version" in told["what"]
        for turn in (3, 2):
            process.device.host.releases.install("boxed", final_model(classes=turn), {})
        assert client.state()["release"]["earlier"] == ["0001-boxed"]
        assert client.post("/rollback") == (200, {"release": "0001-boxed"})
        assert client.state()["release"]["version"] == "0001-boxed"

    opened(own, work)


def saved(save, *values):
    stream = io.BytesIO()
    save(stream, *values)
    return stream.getvalue()


def npz(x):
    stream = io.BytesIO()
    np.savez(stream, x=x)
    return stream.getvalue()


X = np.array([[0, 9, 0, 0], [9, 0, 0, 0]], np.float32)


def test_records_in_each_form_are_answered_and_leave_nothing_behind(own):
    def work(client, process):
        client.log_in()
        csv = b"0,9,0,0\n9,0,0,0\n"
        assert (
            "no model is released" in client.post("/try", csv, Content_Type="text/csv")[1]["what"]
        )
        process.device.host.releases.install("boxed", final_model(), {})
        before = sorted(own.state_dir.iterdir())
        for content, kind in (
            (csv, "text/csv"),
            (saved(np.save, X), "application/x-npy"),
            (npz(X), "application/x-npz"),
        ):
            status, told = client.post("/try", content, Content_Type=kind)
            assert status == 200, told
            assert (told["release"], told["records"]) == ("0001-boxed", 2)
            assert [one["label"] for one in told["predictions"]] == [1, 0]
        assert sorted(own.state_dir.iterdir()) == before
        assert process.spending.told()["links"] == 0  # it costs nothing

    opened(own, work)


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        (b"1,2,3\n", "text/csv", "has shape (1, 3), the model takes"),
        (b"", "text/csv", ""),
        (b"\x93NUMPY\x01\x00", "application/x-npy", "is not a readable NPY array"),
        (saved(np.save, np.array([{}], object)), "application/x-npy", "not numbers"),
        (b"PK\x03\x04", "application/x-npz", "is not a readable NPZ array"),
        (b"\x89PNG", "image/png", "does not say what it makes of them"),
        (b"<html>", "text/html", "this kind of file is not taken"),
    ],
)
def test_what_holds_no_records_is_refused_in_words(own, content, kind, said):
    def work(client, process):
        process.device.host.releases.install("boxed", final_model(), {})
        client.log_in()
        status, told = client.post("/try", content, Content_Type=kind)
        assert status == 400 and said in told["what"] and str(own.state_dir) not in str(told)

    opened(own, work)


def with_schema(**form):
    """A model of four numbers, or of what the schema makes of its columns or pictures."""
    label = {"classes": ("cat", "dog", "cow"), **({"column": "what"} if "columns" in form else {})}
    plain = {"origin": "public", "label": label}
    schema = DataSchema.model_validate({**plain, **form})
    return described(final_model(shape=schema.input_shape), schema_metadata(schema))


def test_pictures_are_read_as_the_model_s_schema_says(own):
    def work(client, process):
        onnx = with_schema(image={"size": (2, 2)})
        process.device.host.releases.install("boxed", onnx, {})
        client.log_in()
        model = client.ask("GET", "/model")[1]
        assert (model["pictures"], model["classes"]) == (True, ["cat", "dog", "cow"])
        pixels = Image.fromarray(np.array([[0, 200], [0, 0]], np.uint8))
        status, told = client.post("/try", saved(pixels.save, "png"), Content_Type="image/png")
        assert status == 200, told
        (found,) = told["predictions"]
        assert (found["name"], told["classes"]) == ("dog", ["cat", "dog", "cow"])
        assert "file" not in found
        status, told = client.post("/try", b"\x89PNG", Content_Type="image/png")
        assert told["predictions"] == [{"label": None}]

    opened(own, work)


def test_a_table_is_read_by_its_columns_and_its_labels_are_held_against_the_answers(own):
    columns = [{"name": name, "number": (0, 9)} for name in ("a", "b", "c", "d")]

    def work(client, process):
        process.device.host.releases.install("boxed", with_schema(columns=tuple(columns)), {})
        client.log_in()
        assert client.ask("GET", "/model")[1]["columns"] == ["a", "b", "c", "d"]
        table = b"d,c,b,a,what\n0,0,9,0,dog\n0,0,0,9,dog\n"
        status, told = client.post("/try", table, Content_Type="text/csv")
        assert status == 200, told
        assert [one["name"] for one in told["predictions"]] == ["dog", "cat"]
        assert told["accuracy"] == 0.5
        status, told = client.post("/try", b"a,b\n1,2\n", Content_Type="text/csv")
        assert status == 400 and "tmp" not in str(told)

    opened(own, work)


def test_a_stop_does_not_wait_for_watchers(own):
    held = []

    def work(client, _process):
        client.log_in()
        held.append(client.events())
        next(held[0].__enter__())

    opened(own, work)
    held[0].__exit__(None, None, None)
