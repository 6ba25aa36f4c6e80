"""One root error, with fault, place and fix. The class decides the exit code."""

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
"""Exceptions of third-party code, reported where it is called so that the process goes on."""
_PROBLEM = re.compile(r"(?P<file>.+?):(?P<line>\d+) (?P<key>\S*): (?P<text>.*)", re.DOTALL)


class EdgeVeilError(Exception):
    """Root of all errors shown to users: `what` is the fault, `fix` the next step."""

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
    """One problem of a configuration: `file:line key: text`, or text alone without a file."""

    file: str
    line: int
    key: str
    text: str

    @classmethod
    def parse(cls, line: str) -> ConfigProblem:
        found = _PROBLEM.fullmatch(line)
        if found is None:
            return cls("", 0, "", line)
        return cls(found["file"], int(found["line"]), found["key"], found["text"])

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.key}: {self.text}" if self.file else self.text


class ConfigError(EdgeVeilError):
    """The YAML is unusable; `problems` has every problem, one per line."""

    exit_code = 2

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))

    @property
    def places(self) -> list[ConfigProblem]:
        return [ConfigProblem.parse(line) for line in self.problems]


class UsageError(EdgeVeilError):
    """A command or call is invalid."""

    exit_code = 2


class SystemFault(EdgeVeilError):  # noqa: N818 - the state's name
    """A resource of the machine is missing but may come back: a disk, a file, a port, a thread."""


_WRITTEN = (errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP, errno.EISDIR, None)


def of_environment(error: BaseException) -> bool:
    """Return whether an error of the system or a database (PEP 249) caused `error`: then retry."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, SystemFault) or type(cause).__name__ == "OperationalError":
            return True
        if isinstance(cause, OSError) and type(cause).__module__ != "ssl":
            return cause.errno not in _WRITTEN
        cause = cause.__cause__ or cause.__context__
    return False


class MissingExtraError(UsageError, ImportError):
    """A library is missing; `fix` names the extra that installs it."""


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Convert a missing library to MissingExtraError in a block or decorated function."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if not library or library in OWN_PACKAGES:
            raise
        what = f"this needs {library}, which is not installed"
        raise MissingExtraError(what, fix=f"pip install 'edgeveil[{extra}]'") from error


class BrokerError(EdgeVeilError):
    """A broker is unreachable, cannot be started, or refuses the credentials."""

    exit_code = 3


class DataError(EdgeVeilError):
    """A data file or source cannot be read in its stated form."""

    exit_code = 4


class RecordsError(DataError):
    """Unreadable records; the device answers as one without records."""


class PrivacyError(EdgeVeilError):
    """A privacy parameter is invalid or a budget is exhausted."""

    exit_code = 5


class JobFailed(EdgeVeilError):  # noqa: N818 - the state's name
    """A job ended without a model; the text states the round and the reason."""

    exit_code = 6


class ProtocolError(EdgeVeilError):
    """A message violates the protocol; `reason` is the counter's name (a short slug)."""

    exit_code = 7

    def __init__(self, reason: str, what: str = "") -> None:
        self.reason = reason
        super().__init__(what or reason)


class CryptoError(EdgeVeilError):
    """A key file, key or ciphertext is malformed; a broadcast for other devices is no error."""

    exit_code = 8
