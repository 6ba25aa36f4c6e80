"""Run a program that ends with its parent: `python broker_tied.py PROGRAM [ARGUMENT]...`.

For a program that does not watch its parent. The parent keeps the writing end of the standard
input; when that closes, even by SIGKILL of the parent, a small child of the program sends it
SIGTERM. Imports only a small part of the standard library: this module is run as a file."""

import os
import signal
import sys


def main(command: list[str]) -> None:
    """Replace this process by the program; never returns."""
    program = os.getpid()
    if os.fork() == 0:
        _watch(program)
    os.execvp(command[0], command)  # noqa: S606 - the caller's own command


def _watch(program: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ends with its program, not before
    while os.read(0, 1):
        pass
    if os.getppid() == program:  # else its number may be another process's
        os.kill(program, signal.SIGTERM)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
