"""A cloud from afar, by its HTTP control: submit, list, watch, resume, cancel, fetch.

For a desk that has the core's libraries alone.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from http import HTTPStatus
from http.client import (
    BadStatusLine,
    HTTPConnection,
    HTTPException,
    HTTPSConnection,
    LineTooLong,
    RemoteDisconnected,
    UnknownProtocol,
)
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from edgeveil.errors import ConfigError, JobFailed, UsageError
from edgeveil.jobs import Job
from edgeveil.parts.features import read_backbones
from edgeveil.transport.http import is_loopback
from edgeveil_cloud.http_token import PROOF_PATH, proof, read_token
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
    """The cloud, or the database behind it, does not answer now."""


class Cloud:
    """A running cloud at `url`, as `http://127.0.0.1:8701`.

    `token` is a secret of its HTTP control: the text itself, or the path of one of the token files
    in the cloud's state folder, `http-read.token`, `http-submit.token` or `http.token`. Over plain
    HTTP it goes to this machine alone, or anywhere with `insecure_http`, and only after what
    answers there has proved that it knows the token. What only reads is asked again for
    `patience_s` while nothing answers: a cloud may restart. Each method raises UsageError or
    ConfigError with the fix, CloudAway among them where nothing answers. Methods may be called from
    several threads.

        cloud = Cloud("http://127.0.0.1:8701", Path("site/state/cloud/http.token"))
        job = cloud.submit("configs/jobs/quickstart.yaml")
        for event in cloud.watch(job):
            print(event["type"])
    """

    def __init__(
        self,
        url: str,
        token: str | Path,
        *,
        patience_s: float = 0.0,
        insecure_http: bool = False,
    ) -> None:
        self._patience_s = patience_s
        try:
            parts = urlsplit(url)
            host, port, kind = parts.hostname or "", parts.port, parts.scheme
            host.encode("idna")
        except ValueError:
            host, port, kind = "", None, ""
        if kind not in ("http", "https") or not _HOST.fullmatch(host) or parts.username is not None:
            raise UsageError(
                "is no address of a cloud",
                where=re.sub("//.*@", "//…@", url),  # a password is for no log
                fix="use http://127.0.0.1:8701",
            )
        if kind == "http" and not is_loopback(host) and not insecure_http:
            raise UsageError(
                "the token would cross the network unencrypted",
                where=url,
                fix="use https://, or a tunnel, ssh -L 8701:127.0.0.1:8701 HOST; if all who can"
                " listen may have the token: --insecure-http (insecure_http=True)",
            )
        self.url = url.rstrip("/")
        self._tls, self._host, self._port = kind == "https", host, port
        self._prefix = quote(parts.path.rstrip("/"))
        self._token = _token(token)

    def submit(self, job: str | Path | Job) -> str:
        """Queue a job, by its file or as it was loaded; returns its id.

        ConfigError lists every problem of the file, or says which stage of the job would fail, by
        made-up records, where the cloud's libraries are installed here; else the cloud says so,
        without the line.
        """
        plan = plan_of(job)
        rehearse(plan, None if isinstance(job, Job) else Path(job), needed=False)
        backbones = read_backbones(plan.job.features)
        return self.submit_yaml(submitted(plan.job), backbones.values())

    def submit_yaml(self, job_yaml: bytes, backbones: Iterable[bytes] = ()) -> str:
        """Queue a job's text as it is; ConfigError holds all problems that the cloud found.

        `backbones` are the feature extractors (ONNX) that the job names by digest.
        """
        for graph in backbones:
            self._json("PUT", "/backbones", graph, timeout_s=UPLOAD_S)
        # A model's code may have to be imported there, torch with it.
        found = self._json("POST", "/jobs", job_yaml, holds=("id",), timeout_s=UPLOAD_S)
        return str(found["id"])

    def job(self, job: str) -> JsonObject:
        """One job with its committed exchanges, by id."""
        return self._json("GET", f"/jobs/{quote(job, safe='')}", holds=_OF_A_JOB)

    def cancel(self, job: str) -> JsonObject:
        """Cancel a job that has not ended; returns it."""
        return self._json("POST", f"/jobs/{quote(job, safe='')}/cancel")

    def resume(self, job: str) -> JsonObject:
        """Let a paused job go on at the round where it stood; returns it."""
        return self._json("POST", f"/jobs/{quote(job, safe='')}/resume")

    def events(self, job: str, after: int = 0, wait_s: float = 0.0) -> JsonRows:
        """Events after number `after`; waits up to `wait_s` for the first."""
        if not 0 <= wait_s <= MAX_WAIT_S:
            raise UsageError(
                f"must be seconds from 0 to {MAX_WAIT_S:g}, got {wait_s}", where="wait_s"
            )
        path = f"/jobs/{quote(job, safe='')}/events?after={after}&wait_s={wait_s:g}"
        return self._rows(path, "events", ("seq", "type"), timeout_s=TIMEOUT_S + wait_s)

    def watch(self, job: str, poll_s: float = POLL_S) -> Iterator[JsonObject]:
        """All events of a job from its beginning until it has ended, as they come.

        A pause ends nothing: somebody may resume the job.
        """
        after = 0
        while True:
            # Asked before the events: what came up to the end is then among them.
            ended = self.job(job)["ended_at"] is not None
            found = self.events(job, after, 0.0 if ended else poll_s)
            yield from found
            if found:
                after = int(found[-1]["seq"])
            elif ended:
                return

    def wait(self, job: str) -> JsonObject:
        """Wait until a job has ended; returns it. JobFailed unless it was completed."""
        for _ in self.watch(job):
            pass
        found = self.job(job)
        if found["status"] != "completed":
            raise JobFailed(found["reason"] or found["status"], where=found["id"])
        return found

    def model(self, job: str, kind: str = "onnx") -> bytes:
        """The final model's file, `onnx` or `safetensors`."""
        path = f"/jobs/{quote(job, safe='')}/model.{kind}"
        return self._request("GET", path, None, UPLOAD_S, "application/octet-stream")

    def fetch(self, job: str, out: str | Path | None = None) -> Path:
        """Write the final model to `out`; returns the file's path.

        FILE.onnx, ID.onnx where none is named, runs in `predict` and every ONNX runtime;
        FILE.safetensors holds the weights alone. UsageError for another ending, a job without a
        model, a file that cannot be written.
        """
        path = Path(out) if out is not None else Path(f"{job}.onnx")
        kind = path.suffix.removeprefix(".")
        if kind not in MODEL_KINDS:
            raise UsageError(
                f"a model is no '{path.suffix}' file",
                where="--out",
                fix="end it in .onnx (for edgeveil predict) or .safetensors (weights alone)",
            )
        content = self.model(job, kind)
        with writing(path, "name a file that you may write to with --out"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
        return path

    def list(self) -> JsonRows:
        """All jobs, oldest first: id, status, reason, submitted_at, ended_at, …"""
        return self._rows("/jobs", "jobs", ("id", "status"))

    def releases(self) -> JsonRows:
        """All releases, oldest first: job, stage, reason, counts of reports, …"""
        return self._rows("/releases", "releases", _OF_A_RELEASE)

    def release(self, job: str) -> JsonObject:
        """The release of one job."""
        return self._json("GET", f"/releases/{quote(job, safe='')}", holds=_OF_A_RELEASE)

    def withdraw(self, job: str) -> JsonObject:
        """Have all devices leave the release of this job; returns it."""
        path = f"/releases/{quote(job, safe='')}/withdraw"
        return self._json("POST", path, holds=_OF_A_RELEASE)

    def promote(self, job: str) -> JsonObject:
        """Bring the release of this job to all devices now; returns it."""
        return self._json("POST", f"/releases/{quote(job, safe='')}/promote", holds=_OF_A_RELEASE)

    def _rows(
        self, path: str, key: str, holds: Sequence[str], *, timeout_s: float = TIMEOUT_S
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
        found = _mapping(self._request(method, path, body, timeout_s, "application/json"))
        if found is None or not _holds(found, holds):
            raise self._no_cloud()
        return found

    def _no_cloud(self) -> UsageError:
        return UsageError(
            "what answers there is no cloud", where=self.url, fix="check the address and its port"
        )

    def _request(
        self, method: str, path: str, body: bytes | None, timeout_s: float, content_type: str
    ) -> bytes:
        """One request; a GET is tried again while the cloud is away, for `patience_s`."""
        end = time.monotonic() + (self._patience_s if method == "GET" else 0.0)
        while True:
            try:
                return self._request_once(method, path, body, timeout_s, content_type)
            except CloudAway:
                if time.monotonic() >= end:
                    raise
                time.sleep(AGAIN_S)

    def _request_once(
        self, method: str, path: str, body: bytes | None, timeout_s: float, content_type: str
    ) -> bytes:
        kind = HTTPSConnection if self._tls else HTTPConnection
        connection = kind(self._host, self._port, timeout=timeout_s)
        try:
            if not self._tls:
                self._have_proof(connection)
            headers = {"Authorization": f"Bearer {self._token}"}
            connection.request(method, self._prefix + path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, HTTPException) as error:
            if isinstance(error, _NO_HTTP) and not isinstance(error, RemoteDisconnected):
                raise self._no_cloud() from error
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise CloudAway(
                f"the cloud does not answer ({reason})",
                where=self.url,
                fix="start it with edgeveil cloud --config FILE, or pass --cloud URL",
            ) from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise self._refused(answer.status, content)
        if answer.headers.get_content_type() != content_type:
            raise self._no_cloud()
        return content

    def _have_proof(self, connection: HTTPConnection) -> None:
        """Make sure that the other end of this very connection knows the token.

        Else whoever took the port while the cloud was down would be handed it.
        """
        nonce = secrets.token_hex(32)
        connection.request("GET", f"{self._prefix}{PROOF_PATH}?nonce={nonce}")
        connection.auto_open = 0  # never on to another connection, whose end has proved nothing
        answer = connection.getresponse()
        found = _mapping(answer.read(_PROOF_BYTES)) or {}
        if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise self._refused(answer.status, b"")
        proofs = found.get("proofs")
        if not isinstance(proofs, list):
            raise self._no_cloud()
        wanted = proof(self._token, nonce).encode()
        given = (one.encode("utf-8", "replace") for one in proofs if isinstance(one, str))
        if not any(hmac.compare_digest(one, wanted) for one in given):
            raise UsageError(
                "what answers there does not know the token, which was not sent",
                where=self.url,
                fix="pass a token file of this cloud's state_dir as it is now; if it is one,"
                " something else holds the port",
            )

    def _refused(self, status: int, content: bytes) -> ConfigError | UsageError:
        found = _mapping(content) or {}
        if isinstance(found.get("problems"), list):
            return ConfigError([str(problem) for problem in found["problems"]])
        what = str(found.get("what", f"answers HTTP status {status}"))
        kind = CloudAway if status == HTTPStatus.SERVICE_UNAVAILABLE else UsageError
        return kind(what, where=self.url, fix=str(found.get("fix", "")))


def _token(token: str | Path) -> str:
    if isinstance(token, str):
        if not (token.isascii() and token.strip().isprintable()):
            raise UsageError("is no token of a cloud", where="token", fix="pass its http.token")
        return token.strip()
    if not token.is_file():
        raise UsageError(
            "no such token file",
            where=str(token),
            fix="name a file *.token in the cloud's state_dir; its first start makes them",
        )
    return read_token(token)


def _mapping(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _holds(found: object, keys: Sequence[str]) -> bool:
    return isinstance(found, dict) and all(key in found for key in keys)


def get_json(url: str, token: str = "") -> dict[str, Any]:
    """A JSON object over HTTP, past any proxy of the system; OSError when there is none."""
    found = _mapping(get_text(url, token).encode())
    if found is None:
        raise OSError("no JSON object")
    return found


def get_text(url: str, token: str = "", timeout_s: float = 2.0) -> str:
    """A page over HTTP, past any proxy of the system; OSError when there is none."""
    request = urllib.request.Request(url)  # noqa: S310 - our own address
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=timeout_s) as answer:
            return str(answer.read(_PAGE_BYTES).decode("utf-8", "replace"))
    except (ValueError, urllib.error.URLError, HTTPException) as error:
        raise OSError(str(getattr(error, "reason", None) or error)) from error
