"""`edgeveil` as typed by a user, and edits of the files that it reads."""

import signal
import subprocess
import sys
from contextlib import contextmanager

import psutil
import yaml


def edgeveil(*arguments):
    return [sys.executable, "-m", "edgeveil_tools.cli", *map(str, arguments)]


def ran(*arguments, **options):
    command = edgeveil(*arguments)
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def interrupted(command, *, after, processes=0, work=lambda _run: None):
    """Send Ctrl-C after a line with `after` and `work`; all `processes` or more must end."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    run = subprocess.Popen(command, **options, start_new_session=True)
    try:
        assert any(after in line for line in run.stdout)
        work(run)
        children = psutil.Process(run.pid).children(recursive=True)
        assert len(children) >= processes, [child.cmdline() for child in children]
        run.send_signal(signal.SIGINT)
        output = run.stdout.read()
        assert run.wait(60) == 130
    finally:
        run.kill()
    assert "Interrupted" in output and "Traceback" not in output
    assert psutil.wait_procs(children, timeout=10)[1] == []


def edited(text, edits):
    for old, new in edits.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


@contextmanager
def changed(path):
    """Yield the content of a YAML file, and write what it was changed to."""
    content = yaml.safe_load(path.read_text("utf-8"))
    yield content
    path.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
