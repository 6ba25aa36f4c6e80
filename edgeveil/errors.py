"""One root error. Every error says what is wrong, where, and how to fix it.

The class decides the exit code; `str(error)` is the text a user reads.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

OWN_PACKAGES = (
    *("edgeveil", "edgeveil_edge", "edgeveil_cloud", "edgeveil_proxy"),
    *("edgeveil_tools", "edgeveil_lab"),
)
INTERRUPTED = 130
"""The exit code after Ctrl-C."""
OF_OTHERS_CODE = (Exception, SystemExit)
"""What code of others may end with: told where it is run, and no end of the process."""
_PROBLEM = re.compile(r"(?P<file>.+?):(?P<line>\d+) (?P<key>\S*): (?P<text>.*)", re.DOTALL)


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


class ConfigProblem(NamedTuple):
    """One problem of a configuration file: `str(problem)` is `file:line key: text`; without a
    place, as of a command line's value, `file` is empty and the line 0."""

    file: str
    line: int
    key: str
    text: str

    @classmethod
    def parse(cls, line: str) -> ConfigProblem:
        """The problem that `line`, the text of one, speaks of."""
        found = _PROBLEM.fullmatch(line)
        if found is None:
            return cls("", 0, "", line)
        return cls(found["file"], int(found["line"]), found["key"], found["text"])

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.key}: {self.text}" if self.file else self.text


class ConfigError(EdgeVeilError):
    """The YAML cannot be used; holds every problem found, one per line."""

    exit_code = 2

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))

    @property
    def places(self) -> list[ConfigProblem]:
        """The problems taken apart: file, line, key, text."""
        return [ConfigProblem.parse(line) for line in self.problems]


class UsageError(EdgeVeilError):
    """A command or a call asks for something that cannot be done."""

    exit_code = 2


class SystemFault(EdgeVeilError):  # noqa: N818 - the state's name
    """The machine lacks what may be there the next time: a disk, a file, a port, a thread."""


_WRITTEN = (errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP, errno.EISDIR, None)


def of_environment(error: BaseException) -> bool:
    """Whether the machine is what ended a process with `error`: an error of the system or of a
    database (PEP 249's OperationalError) stands behind it. Such an end has exit code 1 and is tried
    again, 2 is not."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, SystemFault) or type(cause).__name__ == "OperationalError":
            return True
        if isinstance(cause, OSError) and type(cause).__module__ != "ssl":
            return cause.errno not in _WRITTEN
        cause = cause.__cause__ or cause.__context__
    return False


class MissingExtraError(UsageError, ImportError):
    """A library is needed that is installed with an extra of ours; `fix` names the extra."""


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Say which extra is missing where a library is; a decorator too. MissingExtraError."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if not library or library in OWN_PACKAGES:
            raise
        raise MissingExtraError(
            f"this needs {library}, which is not installed", fix=f"pip install 'edgeveil[{extra}]'"
        ) from error


class BrokerError(EdgeVeilError):
    """A broker cannot be reached, started, or refuses the credentials."""

    exit_code = 3


class DataError(EdgeVeilError):
    """A data file or source cannot be read as what it is said to be."""

    exit_code = 4


class RecordsError(DataError):
    """Records that cannot be read; a device answers as one without records."""


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
