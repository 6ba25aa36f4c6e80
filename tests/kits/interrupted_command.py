"""A command that is ended by Ctrl-C once it said something, and must leave no process behind."""

import signal
import subprocess

import psutil


def interrupted(command, *, after, processes):
    """Ctrl-C after a line with `after`: 130, a word, and all its `processes` or more ended."""
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    for line in run.stdout:
        if after in line:
            break
    children = psutil.Process(run.pid).children(recursive=True)
    assert len(children) >= processes, [child.cmdline() for child in children]
    run.send_signal(signal.SIGINT)
    said = run.stdout.read()
    assert run.wait(60) == 130
    assert "Interrupted" in said
    assert psutil.wait_procs(children, timeout=10)[1] == []
