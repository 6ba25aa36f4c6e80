"""One root error. Every error says what is wrong, where, and how to fix it.

The class decides the exit code; `str(error)` is the text a user reads.
"""

from __future__ import annotations


class EdgeVeilError(Exception):
    """Root of all errors that a user may see.

    `what` states the fault, `where` the file, line, key or address it concerns,
    `fix` the next step. Processes that end on one exit with `exit_code`.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(what)

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        if not self.fix:
            return text
        return f"{text} {self.fix}" if text.endswith((".", "?")) else f"{text}. {self.fix}"


class ConfigError(EdgeVeilError):
    """The YAML cannot be used; holds every problem found, one per line."""

    exit_code = 2

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class UsageError(EdgeVeilError):
    """The command line asks for something that cannot be done."""

    exit_code = 2


class BrokerError(EdgeVeilError):
    """A broker cannot be reached, started, or refuses the credentials."""

    exit_code = 3


class DataError(EdgeVeilError):
    """A data file or source cannot be read as what it is said to be."""

    exit_code = 4


class PrivacyError(EdgeVeilError):
    """A privacy parameter has no meaning or a budget is exhausted."""

    exit_code = 5


class JobFailed(EdgeVeilError):  # noqa: N818 - the state's name
    """A job ended without a model; the text says at which round and why."""

    exit_code = 6


class ProtocolError(EdgeVeilError):
    """A message breaks the protocol. `reason` is the counter's name (a short slug)."""

    exit_code = 7

    def __init__(self, reason: str, what: str = "") -> None:
        self.reason = reason
        super().__init__(what or reason)


class CryptoError(EdgeVeilError):
    """A key file, key or ciphertext is not what it must be; a quiet "not for me" is none."""

    exit_code = 8
