"""Client of a cloud's HTTP control, with the core's libraries only."""

from __future__ import annotations

import hmac
import re
import secrets
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from http.client import (
    BadStatusLine,
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    LineTooLong,
    RemoteDisconnected,
    UnknownProtocol,
)
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from edgeveil.config.addresses import place
from edgeveil.config.links import Http
from edgeveil.errors import BrokerError, ConfigError, JobFailed, UsageError
from edgeveil.jobs import Job
from edgeveil.jobs.artifacts import read_artifacts
from edgeveil.storage import json_object
from edgeveil.tokens import read_token
from edgeveil.transport.dialling import client_context, clock_advice
from edgeveil.transport.listener import is_loopback
from edgeveil_cloud.http_guard import PROOF_PATH, proof
from edgeveil_tools.checks import plan_of, rehearse
from edgeveil_tools.local.job import submitted
from edgeveil_tools.result import write_whole, writing

TIMEOUT_S = 10.0
POLL_S = 20.0
UPLOAD_S = 120.0
MAX_WAIT_S = 86_400.0
AGAIN_S = 0.5
MODEL_KINDS = ("onnx", "safetensors")
_PAGE_BYTES = 1 << 20
_PROOF_BYTES = 4096
_NO_HTTP = (BadStatusLine, LineTooLong, UnknownProtocol)
_HOST = re.compile(r"[\w.:%-]+")
_OF_A_RELEASE = ("job", "stage", "reason", "reports", "expires_at")
_OF_A_JOB = ("id", "status", "reason", "ended_at", "exchanges")

JsonObject = dict[str, Any]
JsonRows = list[JsonObject]


class CloudAway(UsageError):  # noqa: N818 - the state's name
    """The cloud, or its database, does not answer."""


class Cloud:
    """A running cloud at `url`: `http://127.0.0.1:8701`, `https://HOST:PORT` or `unix:PATH`.

    `token` is the text or the path of a token file in the cloud's state folder, `http-read.token`,
    `http-submit.token` or `http.token`; None if the client authenticates over https by `cert_file`
    with `key_file` (PEM). `ca_file` is the authority of the cloud's certificate (default: the
    system's). Over plain HTTP the token is sent only on this machine, unless `insecure_http`, and
    only to a server that has proved to know it. Reads are retried for `patience_s` without an
    answer. Each method raises UsageError or ConfigError with the fix, CloudAway without an answer;
    all are thread-safe.

        cloud = Cloud("http://127.0.0.1:8701", Path("site/state/cloud/http.token"))
        job = cloud.submit("configs/jobs/quickstart.yaml")
        for event in cloud.watch(job):
            print(event["type"])
    """

    def __init__(
        self,
        url: str,
        token: str | Path | None = None,
        *,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
        patience_s: float = 0.0,
        insecure_http: bool = False,
    ) -> None:
        self._patience_s = patience_s
        self._address = _HttpAddress.parse(url, ca_file, cert_file, key_file)
        self.url = self._address.url
        if self._address.is_readable_on_the_way and token is not None and not insecure_http:
            fix = "use https://, or a tunnel, ssh -L 8701:127.0.0.1:8701 HOST; if all who can"
            fix += " listen may have the token: EDGEVEIL_INSECURE_HTTP=1 (insecure_http=True)"
            what = "the token would cross the network unencrypted"
            raise UsageError(what, where=url, fix=fix)
        if token is None and cert_file is None:
            fix = "pass --token-file, or EDGEVEIL_CERT_FILE and EDGEVEIL_KEY_FILE over https://"
            raise UsageError("neither a token nor a certificate is given", where=url, fix=fix)
        self._token = None if token is None else _token(token)

    def submit(self, job: str | Path | Job) -> str:
        """Queue a job file or a loaded job; returns its id, raises ConfigError."""
        plan = plan_of(job)
        rehearse(plan, None if isinstance(job, Job) else Path(job), needed=False)
        return self.submit_yaml(submitted(plan.job), read_artifacts(plan.job).values())

    def submit_yaml(self, job_yaml: bytes, backbones: Iterable[bytes] = ()) -> str:
        """Queue a job's text with its `backbones` (ONNX); returns its id, raises ConfigError."""
        for graph in backbones:
            self._json("PUT", "/backbones", graph, timeout_s=UPLOAD_S)
        # The cloud may have to import a model's code, and torch.
        found = self._json("POST", "/jobs", job_yaml, holds=("id",), timeout_s=UPLOAD_S)
        return str(found["id"])

    def job(self, job: str) -> JsonObject:
        """Return a job with its committed rounds."""
        return self._json("GET", _at("jobs", job), holds=_OF_A_JOB)

    def content(self, job: str) -> bytes:
        """Return the job as canonical JSON, for `Job.from_canonical`."""
        return self._request("GET", _at("jobs", job, "/job.json"))

    def cancel(self, job: str) -> JsonObject:
        """Cancel a job that has not ended, and return it."""
        return self._json("POST", _at("jobs", job, "/cancel"))

    def resume(self, job: str) -> JsonObject:
        """Resume a paused job at its round, and return it."""
        return self._json("POST", _at("jobs", job, "/resume"))

    def events(self, job: str, after: int = 0, wait_s: float = 0.0) -> JsonRows:
        """Return events after number `after`, waiting up to `wait_s` for the first."""
        if not 0 <= wait_s <= MAX_WAIT_S:
            what = f"must be seconds from 0 to {MAX_WAIT_S:g}, got {wait_s}"
            raise UsageError(what, where="wait_s")
        path = _at("jobs", job, f"/events?after={after}&wait_s={wait_s:g}")
        return self._rows(path, "events", ("seq", "type"), TIMEOUT_S + wait_s)

    def watch(self, job: str, poll_s: float = POLL_S) -> Iterator[JsonObject]:
        """Yield all events of a job from its beginning until it has ended, through pauses."""
        after = 0
        while True:
            # Asked first, so that the events include all up to the end.
            ended = self.job(job)["ended_at"] is not None
            found = self.events(job, after, 0.0 if ended else poll_s)
            yield from found
            if found:
                after = int(found[-1]["seq"])
            elif ended:
                return

    def wait(self, job: str) -> JsonObject:
        """Wait until a job has ended and return it; raises JobFailed unless it completed."""
        for _ in self.watch(job):
            pass
        found = self.job(job)
        if found["status"] != "completed":
            raise JobFailed(found["reason"] or found["status"], where=found["id"])
        return found

    def model(self, job: str, kind: str = "onnx") -> bytes:
        """Return the final model's file, `onnx` or `safetensors`."""
        path = _at("jobs", job, f"/model.{kind}")
        return self._request("GET", path, None, UPLOAD_S, "application/octet-stream")

    def fetch(self, job: str, out: str | Path | None = None) -> Path:
        """Write the final model to `out` (.onnx or .safetensors; default ID.onnx)."""
        path = Path(out) if out is not None else Path(f"{job}.onnx")
        kind = path.suffix.removeprefix(".")
        if kind not in MODEL_KINDS:
            fix = "end it in .onnx (for edgeveil predict) or .safetensors (only weights)"
            raise UsageError(f"a model is no '{path.suffix}' file", where="--out", fix=fix)
        content = self.model(job, kind)
        with writing(path, "name a file that you may write to with --out"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
        return path

    def status(self) -> JsonObject:
        """Return the cloud's state, job and round, with counts of devices and jobs."""
        return self._json("GET", "/status")

    def metrics(self) -> str:
        found = self._request("GET", "/metrics", None, TIMEOUT_S, "text/plain")
        return found.decode("utf-8", "replace")

    def list(self) -> JsonRows:
        """Return all jobs, oldest first: id, status, reason, submitted_at, ended_at and others."""
        return self._rows("/jobs", "jobs", ("id", "status"))

    def releases(self) -> JsonRows:
        """Return all releases, oldest first: job, stage, reason, counts of reports and others."""
        return self._rows("/releases", "releases", _OF_A_RELEASE)

    def release(self, job: str) -> JsonObject:
        return self._json("GET", _at("releases", job), holds=_OF_A_RELEASE)

    def withdraw(self, job: str) -> JsonObject:
        """Withdraw this job's release from all devices, and return it."""
        return self._json("POST", _at("releases", job, "/withdraw"), holds=_OF_A_RELEASE)

    def promote(self, job: str) -> JsonObject:
        """Promote this job's release to all devices now, and return it."""
        return self._json("POST", _at("releases", job, "/promote"), holds=_OF_A_RELEASE)

    def _rows(
        self, path: str, key: str, holds: Sequence[str], timeout_s: float = TIMEOUT_S
    ) -> JsonRows:
        rows = self._json("GET", path, holds=(key,), timeout_s=timeout_s)[key]
        if not isinstance(rows, list) or not all(_holds(row, holds) for row in rows):
            raise self._no_cloud()
        return rows

    def _json(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        holds: Sequence[str] = (),
        timeout_s: float = TIMEOUT_S,
    ) -> JsonObject:
        found = json_object(self._request(method, path, body, timeout_s))
        if found is None or not _holds(found, holds):
            raise self._no_cloud()
        return found

    def _no_cloud(self) -> UsageError:
        what = "the server is not a cloud"
        return UsageError(what, where=self.url, fix="check the address and its port")

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        timeout_s: float = TIMEOUT_S,
        content_type: str = "application/json",
    ) -> bytes:
        """Return a response's content; a GET is retried for `patience_s`."""
        end = time.monotonic() + (self._patience_s if method == "GET" else 0.0)
        while True:
            try:
                answer, content = self._answered(method, path, body, timeout_s)
                if answer.status >= 400:
                    raise self._refused(answer.status, content)
                break
            except CloudAway:
                if time.monotonic() >= end:
                    raise
                time.sleep(AGAIN_S)
        if answer.headers.get_content_type() != content_type:
            raise self._no_cloud()
        return content

    def _answered(
        self, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> tuple[HTTPResponse, bytes]:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            with closing(self._address.connection(timeout_s)) as connection:
                if self._token is not None and self._address.tls is None:
                    self._require_proof(connection, self._token)
                connection.request(method, self._address.prefix + path, body, headers)
                answer = connection.getresponse()
                return answer, answer.read()
        except ssl.SSLCertVerificationError as error:
            what = f"its certificate is not trusted: {error.verify_message}"
            fix = "name its authority by EDGEVEIL_CA_FILE, and the host as in its certificate"
            raise UsageError(what, where=self.url, fix=clock_advice(error) or fix) from error
        except (OSError, HTTPException) as error:
            if isinstance(error, _NO_HTTP) and not isinstance(error, RemoteDisconnected):
                raise self._no_cloud() from error
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            what = f"the cloud does not answer ({reason})"
            fix = "start it with edgeveil cloud --config FILE, or pass --cloud URL"
            raise CloudAway(what, where=self.url, fix=fix) from error

    def _require_proof(self, connection: HTTPConnection, token: str) -> None:
        """Verify that the server knows the token, before sending it."""
        nonce = secrets.token_hex(32)
        connection.request("GET", f"{self._address.prefix}{PROOF_PATH}?nonce={nonce}")
        connection.auto_open = 0  # never reconnect: another server has proved nothing
        answer = connection.getresponse()
        found = json_object(answer.read(_PROOF_BYTES)) or {}
        if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise self._refused(answer.status, b"")
        proofs = found.get("proofs")
        if not isinstance(proofs, list):
            raise self._no_cloud()
        wanted = proof(token, nonce).encode()
        given = (one.encode("utf-8", "replace") for one in proofs if isinstance(one, str))
        if not any(hmac.compare_digest(one, wanted) for one in given):
            what = "the server has no such token; it was not sent"
            fix = "pass a token file of this cloud's state_dir; or something else holds the port"
            raise UsageError(what, where=self.url, fix=fix)

    def _refused(self, status: int, content: bytes) -> ConfigError | UsageError:
        found = json_object(content) or {}
        if isinstance(found.get("problems"), list):
            return ConfigError([str(problem) for problem in found["problems"]])
        what = str(found.get("what", f"answers HTTP status {status}"))
        kind = CloudAway if status == HTTPStatus.SERVICE_UNAVAILABLE else UsageError
        return kind(what, where=self.url, fix=str(found.get("fix", "")))


@dataclass(frozen=True)
class _HttpAddress:
    url: str
    host: str = ""
    port: int | None = None
    prefix: str = ""  # before the path of each request
    socket: Path | None = None
    tls: ssl.SSLContext | None = None

    @classmethod
    def parse(
        cls,
        url: str,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
    ) -> _HttpAddress:
        """Parse `http://host:port`, `https://host:port` or `unix:PATH`; raises UsageError."""
        files = {"CA": ca_file, "CERT": cert_file, "KEY": key_file}
        given = [f"EDGEVEIL_{name}_FILE" for name, path in files.items() if path is not None]
        if given and not url.startswith("https://"):
            what = f"{given[0]} needs TLS, which this address does not use"
            raise UsageError(what, where=_shown(url), fix="use https://, or leave it out")
        if url.startswith("unix:"):
            path = Path(url.removeprefix("unix:")).expanduser()
            return cls(f"unix:{path}", socket=path)
        try:
            parts = urlsplit(url)
            host, port, kind = parts.hostname or "", parts.port, parts.scheme
            host.encode("idna")
        except ValueError:
            host, port, kind = "", None, ""
        if kind not in ("http", "https") or not _HOST.fullmatch(host) or parts.username is not None:
            fix = "use http://127.0.0.1:8701, https://HOST:8701 or unix:PATH"
            raise UsageError("is no address of a cloud", where=_shown(url), fix=fix)
        context = None
        if kind == "https":
            try:
                context = client_context(ca_file, cert_file, key_file)
            except BrokerError as error:
                raise UsageError(error.what, where=error.where, fix=error.fix) from error
        return cls(url.rstrip("/"), host, port, quote(parts.path.rstrip("/")), tls=context)

    @property
    def is_readable_on_the_way(self) -> bool:
        """Whether requests leave this machine unencrypted."""
        return self.tls is None and self.socket is None and not is_loopback(self.host)

    def connection(self, timeout_s: float) -> HTTPConnection:
        if self.socket is not None:
            return _UnixConnection(self.socket, timeout_s)
        if self.tls is not None:
            return HTTPSConnection(self.host, self.port, timeout=timeout_s, context=self.tls)
        return HTTPConnection(self.host, self.port, timeout=timeout_s)


class _UnixConnection(HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _at(kind: str, job: str, more: str = "") -> str:
    return f"/{kind}/{quote(job, safe='')}{more}"


def _shown(url: str) -> str:
    return re.sub("//.*@", "//…@", url)  # hide a password


def _token(token: str | Path) -> str:
    if isinstance(token, str):
        if not (token.isascii() and token.strip().isprintable()):
            raise UsageError("is no token of a cloud", where="token", fix="pass its http.token")
        return token.strip()
    if not token.is_file():
        fix = "name a file *.token in the cloud's state_dir, created at its first start"
        raise UsageError("no such token file", where=str(token), fix=fix)
    return read_token(token)


def _holds(found: object, keys: Sequence[str]) -> bool:
    return isinstance(found, dict) and all(key in found for key in keys)


def own_address(http: Http) -> str:
    """Return the address for clients on the server's own machine."""
    if http.socket is not None:
        return f"unix:{http.socket}"
    # A server on all addresses is reached by the loopback address.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(http.host, http.host)  # noqa: S104
    return f"{'http' if http.tls is None else 'https'}://{place(host, http.port)}"


def get_json(url: str, page: str) -> dict[str, Any]:
    """Return the JSON object of a page without token, as `/status`; raises OSError."""
    found = json_object(get_text(url, page).encode())
    if found is None:
        raise OSError("no JSON object")
    return found


def get_text(url: str, page: str, timeout_s: float = 2.0) -> str:
    """Return a page without token, bypassing the system's proxy; raises OSError."""
    try:
        address = _HttpAddress.parse(url)
        with closing(address.connection(timeout_s)) as connection:
            connection.request("GET", address.prefix + page)
            answer = connection.getresponse()
            content = answer.read(_PAGE_BYTES)
    except (UsageError, HTTPException) as error:
        raise OSError(str(error)) from error
    if answer.status >= 400:
        raise OSError(f"HTTP status {answer.status} {answer.reason}")
    return content.decode("utf-8", "replace")
