"""Local control socket of a running device: one line of JSON each way, mode 0600.

    {"command": "pause"}  ->  {"state": "paused", …}

`pause`, `resume` and `status` are answered with the device's state then, `page` with an address
that lets a browser in once; anything else with `{"error": …}`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from edgeveil.errors import UsageError
from edgeveil.transport.listener import ANSWER_S, AnswerSocket, connect_unix

CONTROL_FILE = "control.sock"
COMMANDS = ("pause", "resume", "status", "page")
ASKED_BYTES, TOLD_BYTES = 1024, 1 << 20

Obey = Callable[[str], Awaitable[dict[str, Any]]]


class ControlSocket(AnswerSocket):
    """The device's side; `obey` does one of COMMANDS and returns the state."""

    def __init__(self, state_dir: Path, obey: Obey) -> None:
        super().__init__(state_dir / CONTROL_FILE, self._told, ASKED_BYTES)
        self._obey = obey

    async def _told(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        try:
            asked = json.loads(await reader.readuntil(b"\n"))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, RecursionError):
            return {"error": f"asks in no line of JSON of at most {ASKED_BYTES} bytes"}
        command = asked.get("command") if isinstance(asked, dict) else None
        if command not in COMMANDS:
            return {"error": f"names no command; one of {', '.join(COMMANDS)}"}
        try:
            return await self._obey(command)
        except Exception as error:  # as a broken ledger: told to the owner, and the device goes on
            return {"error": str(error) or type(error).__name__}


def ask(state_dir: Path, command: str) -> dict[str, Any]:
    """Give a running device one of COMMANDS; how it stands then. Raises UsageError."""
    try:
        with connect_unix(state_dir / CONTROL_FILE, ANSWER_S) as connection:
            connection.sendall(json.dumps({"command": command}).encode() + b"\n")
            with connection.makefile("rb") as stream:
                told = json.loads(stream.readline(TOLD_BYTES))
    except (FileNotFoundError, ConnectionRefusedError):
        what, fix = "no device runs in this state folder", "start it: edgeveil edge --config FILE"
        raise UsageError(what, where=str(state_dir), fix=fix) from None
    except (OSError, ValueError) as error:
        what, fix = f"the device does not answer ({error})", "try again, as the user that runs it"
        raise UsageError(what, where=str(state_dir), fix=fix) from None
    if not isinstance(told, dict) or "error" in told:
        what = told["error"] if isinstance(told, dict) else "the device's answer is no mapping"
        raise UsageError(str(what), where=str(state_dir), fix="see the device's own console")
    return told
