"""Run third-party code in a separate process, as it may call `os.abort` or never return."""

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
    """Mark this process as separate: code that needs one of its own runs here."""
    global _own
    _own = True


def is_own() -> bool:
    return _own


def run_apart(target: str, request: bytes, limit_s: float, where: str) -> bytes:
    """Return the reply of the function `module:name` to `request`, run in a separate process.

    Raises DataError: the function's own error (ModuleNotFoundError for a missing library), or, at
    `where`, a process that ended or exceeded `limit_s`. The code controls the reply: it is
    untrusted."""
    ours, theirs = os.pipe()
    command = [sys.executable, "-P", "-m", "edgeveil.own_process", target, str(theirs)]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
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
        fix = "make it load and run without waiting"
        raise DataError(f"did not end within {limit_s:g} s", where=where, fix=fix) from None
    finally:
        os.close(ours)
        with suppress(ProcessLookupError):  # the whole group
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    if reply is None:
        cause = ""
        if code < 0 and code != -signal.SIGKILL:  # SIGKILL is our own, after its end
            cause = f" ({signal.Signals(-code).name})"
        raise DataError(f"ended the process that it ran in{cause}", where=where)
    return _result(reply, where)


def _reply(descriptor: int, end_s: float) -> bytes | None:
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


def _result(reply: bytes, where: str) -> bytes:
    head, _, body = reply.partition(b"\n")
    try:
        fault = json.loads(head) if len(head) <= _HEAD_BYTES else None
    except (ValueError, RecursionError):
        fault = None
    if not isinstance(fault, dict) or not all(isinstance(text, str) for text in fault.values()):
        raise DataError("sent a malformed reply", where=where)
    if "missing" in fault:
        raise ModuleNotFoundError(f"No module named {fault['missing']!r}", name=fault["missing"])
    if "what" in fault:
        parts = {key: fault.get(key, "")[:_TEXT_CHARACTERS] for key in ("what", "where", "fix")}
        raise DataError(parts["what"], where=parts["where"] or where, fix=parts["fix"])
    return body


def _serve(target: str, descriptor: int) -> None:
    declare_own()
    request = sys.stdin.buffer.read()
    fault: dict[str, Any] = {}
    body = b""
    try:
        module, _, name = target.partition(":")
        run: Callable[[bytes], bytes] = getattr(import_module(module), name)
        body = run(request)
    except EdgeVeilError as error:
        fault = {"what": error.what, "where": error.where, "fix": error.fix}
    except ModuleNotFoundError as error:
        fault = {"missing": error.name or str(error)}
    fault = {key: str(text)[:_TEXT_CHARACTERS] for key, text in fault.items()}
    reply = json.dumps(fault).encode() + b"\n" + body
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(len(reply).to_bytes(8, "big") + reply)
        stream.flush()
    os._exit(0)  # skip its threads and exit handlers


if __name__ == "__main__":
    # Imported by name, as `__main__` would be a second copy of the module.
    import_module("edgeveil.own_process")._serve(sys.argv[1], int(sys.argv[2]))
