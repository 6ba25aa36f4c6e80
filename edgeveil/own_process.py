"""Code of others in a process of its own, as it may call `os.abort` or never come back: `run_apart`
hands it a request and takes a bounded reply. A device's computing process is such a process
already."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from edgeveil.errors import DataError, EdgeVeilError

REPLY_BYTES = 1 << 29
_HEAD_BYTES = 1 << 14
_TEXT_CHARACTERS = 2000
_READ_BYTES = 1 << 20
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
    ours, theirs = os.pipe()
    command = [sys.executable, "-P", "-m", "edgeveil.own_process", target, str(theirs)]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # what the code prints is no output of ours
            pass_fds=[theirs],
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    finally:
        os.close(theirs)
    try:
        if process.stdin is not None:
            with suppress(BrokenPipeError), process.stdin as stream:
                stream.write(request)
        reply = _reply(ours, time.monotonic() + limit_s)
    except TimeoutError:
        fix = "let it be loaded and run without waiting for anything"
        raise DataError(f"did not end within {limit_s:g} s", where=where, fix=fix) from None
    finally:
        os.close(ours)
        with suppress(ProcessLookupError):  # those that it started too
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    if reply is None:
        raise DataError(f"ended the process that it ran in{_how(code)}", where=where)
    return _result(reply, where)


def _reply(descriptor: int, end_s: float) -> bytes | None:
    """Head and body, up to the end; None where the process ended first. Raises TimeoutError."""
    found = bytearray()
    with selectors.DefaultSelector() as ready:
        ready.register(descriptor, selectors.EVENT_READ)
        while True:
            remaining_s = end_s - time.monotonic()
            if remaining_s <= 0 or not ready.select(remaining_s):
                raise TimeoutError
            piece = os.read(descriptor, _READ_BYTES)
            found += piece
            size = int.from_bytes(found[:8], "big")
            if len(found) >= 8 and size > REPLY_BYTES:
                return None
            if len(found) >= 8 + size and len(found) >= 8:
                return bytes(found[8 : 8 + size])
            if not piece:
                return None


def _how(code: int) -> str:
    if code < 0 and code != -signal.SIGKILL:  # killed: by us, as it had ended already
        return f" ({signal.Signals(-code).name})"
    return ""


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
