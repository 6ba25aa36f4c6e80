"""Becomes another program that ends with its starter: `python broker_tied.py PROGRAM [ARGUMENT]...`

For a program that does not look after its starter itself. The starter keeps the writing end of
the standard input. When that closes, as it does when the starter dies even by SIGKILL, a small
child of the program sends it SIGTERM. Imports nothing but the standard library's smallest part:
it is run as a file.
"""

import os
import signal
import sys


def main(command: list[str]) -> None:
    """Does not return."""
    program = os.getpid()
    if os.fork() == 0:
        _watch(program)
    os.execvp(command[0], command)  # noqa: S606 - the caller's own command


def _watch(program: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ends with its program, not before
    while os.read(0, 1):
        pass
    if os.getppid() == program:  # else it is gone, and its number may be another's
        os.kill(program, signal.SIGTERM)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
