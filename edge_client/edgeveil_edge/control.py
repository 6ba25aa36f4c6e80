"""Local control socket of a running device: one line of JSON each way, mode 0600.

    {"command": "pause"}  ->  {"state": "paused", …} or {"error": …}

`pause`, `resume` and `status` return the new state, `page` an address for one log-in.
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
ASKED_BYTES, ANSWER_BYTES = 1024, 1 << 20

Obey = Callable[[str], Awaitable[dict[str, Any]]]


class ControlSocket(AnswerSocket):
    def __init__(self, state_dir: Path, obey: Obey) -> None:
        super().__init__(state_dir / CONTROL_FILE, self._on_request, ASKED_BYTES)
        self._obey = obey

    async def _on_request(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        try:
            asked = json.loads(await reader.readuntil(b"\n"))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, RecursionError):
            return {"error": f"the request is no line of JSON of at most {ASKED_BYTES} bytes"}
        command = asked.get("command") if isinstance(asked, dict) else None
        if command not in COMMANDS:
            return {"error": f"names no command; one of {', '.join(COMMANDS)}"}
        try:
            return await self._obey(command)
        except Exception as error:  # as a broken ledger: report it, the device keeps running
            return {"error": str(error) or type(error).__name__}


def ask(state_dir: Path, command: str) -> dict[str, Any]:
    """Send one of COMMANDS to a running device and return its state. Raises UsageError."""
    try:
        with connect_unix(state_dir / CONTROL_FILE, ANSWER_S) as connection:
            connection.sendall(json.dumps({"command": command}).encode() + b"\n")
            with connection.makefile("rb") as stream:
                answer = json.loads(stream.readline(ANSWER_BYTES))
    except (FileNotFoundError, ConnectionRefusedError):
        what, fix = "no device runs in this state folder", "start it: edgeveil edge --config FILE"
        raise UsageError(what, where=str(state_dir), fix=fix) from None
    except (OSError, ValueError) as error:
        what, fix = f"the device does not answer ({error})", "try again, as the user that runs it"
        raise UsageError(what, where=str(state_dir), fix=fix) from None
    if not isinstance(answer, dict) or "error" in answer:
        what = answer["error"] if isinstance(answer, dict) else "the device's answer is no mapping"
        raise UsageError(str(what), where=str(state_dir), fix="see the device's own console")
    return answer
