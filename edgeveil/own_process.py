"""Code of others in a process of its own, as it may call `os.abort` or never come back: `run_apart`
hands it a request and takes a bounded reply. A device's computing process is such a process
already."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from edgeveil.errors import DataError, EdgeVeilError

REPLY_BYTES = 1 << 29
_HEAD_BYTES = 1 << 14
_TEXT_CHARACTERS = 2000
_own = False


def declare_own() -> None:
    """Say that this process exists for code of others: what wants one of its own runs here."""
    global _own
    _own = True


def is_own() -> bool:
    """Whether this process exists for code of others."""
    return _own


def run_apart(target: str, request: bytes, limit_s: float, where: str) -> bytes:
    """What the function `module:name` gives for `request`, called in a process of its own.

    The process sees this one's modules and environment. Raises DataError: the function's own error
    (ModuleNotFoundError where a library is missing), or, at `where`, that the process ended or did
    not end within `limit_s` seconds. What comes back was in the hands of the code that ran there.
    """
    with tempfile.TemporaryFile() as answer:
        command = [sys.executable, "-P", "-m", "edgeveil.own_process", target]
        process = subprocess.Popen(
            [*command, str(answer.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # what the code prints is no output of ours
            pass_fds=[answer.fileno()],
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        try:
            process.communicate(request, limit_s)
        except subprocess.TimeoutExpired:
            fix = "let it be loaded and run without waiting for anything"
            raise DataError(f"did not end within {limit_s:g} s", where=where, fix=fix) from None
        finally:
            with suppress(ProcessLookupError):  # those that it started too
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        answer.seek(0)
        size, reply = int.from_bytes(answer.read(8), "big"), answer.read(REPLY_BYTES)
    if size != len(reply) or not reply:
        how = f" ({signal.Signals(-code).name})" if code < 0 else ""
        raise DataError(f"ended the process that it ran in{how}", where=where)
    return _result(reply, where)


def _result(reply: bytes, where: str) -> bytes:
    head, _, body = reply.partition(b"\n")
    try:
        said = json.loads(head) if len(head) <= _HEAD_BYTES else None
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or not all(isinstance(text, str) for text in said.values()):
        raise DataError("gave something else than its reply", where=where)
    if "missing" in said:
        raise ModuleNotFoundError(f"No module named {said['missing']!r}", name=said["missing"])
    if "what" in said:
        parts = {key: said.get(key, "")[:_TEXT_CHARACTERS] for key in ("what", "where", "fix")}
        raise DataError(parts["what"], where=parts["where"] or where, fix=parts["fix"])
    return body


# --- in the process ---


def _serve(target: str, descriptor: int) -> None:
    declare_own()
    request = sys.stdin.buffer.read()
    said: dict[str, Any] = {}
    body = b""
    try:
        module, _, name = target.partition(":")
        run: Callable[[bytes], bytes] = getattr(import_module(module), name)
        body = run(request)
    except EdgeVeilError as error:
        said = {"what": error.what, "where": error.where, "fix": error.fix}
    except ModuleNotFoundError as error:
        said = {"missing": error.name or str(error)}
    said = {key: str(text)[:_TEXT_CHARACTERS] for key, text in said.items()}
    reply = json.dumps(said).encode() + b"\n" + body
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(len(reply).to_bytes(8, "big") + reply)
        stream.flush()
    os._exit(0)  # its threads and whatever it wants to do at its end do not matter


if __name__ == "__main__":
    # By its name: what is declared there is what others import.
    import_module("edgeveil.own_process")._serve(sys.argv[1], int(sys.argv[2]))
