"""A command that is interrupted by Ctrl-C and must leave no process behind."""

import signal
import subprocess

import psutil


def interrupted(command, *, after, processes):
    """Send Ctrl-C after a line with `after`; check exit code 130 and that `processes` ended."""
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    for line in run.stdout:
        if after in line:
            break
    children = psutil.Process(run.pid).children(recursive=True)
    assert len(children) >= processes, [child.cmdline() for child in children]
    run.send_signal(signal.SIGINT)
    output = run.stdout.read()
    assert run.wait(60) == 130
    assert "Interrupted" in output
    assert psutil.wait_procs(children, timeout=10)[1] == []
