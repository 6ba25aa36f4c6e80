import subprocess
import sys
import time

from tests.chaos import supervisor as subject
from tests.chaos.supervisor import Supervisor
from tests.kits.live_site import wait_for

SCRIPT = """
import sys
print("running", flush=True)
if sys.argv[1] == "ends":
    sys.exit(7)
raise ValueError("a bug")
"""


def spawn(arguments, output, _lifeline, **_options):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def test_a_process_that_ends_is_restarted_and_kills_hit_the_next_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(subject, "spawn", spawn)
    site = Supervisor(tmp_path, time.monotonic)
    try:
        site.start("one", ["ends"])
        wait_for(lambda: site.ends, "its first end")
        for _ in range(2):  # both before its next start
            site.kill("one")
        wait_for(lambda: [end.how for end in site.ends].count("killed") == 2, "both kills")
        first = site.ends[0]
        assert (first.code, first.how, first.said) == (7, "by itself", "running")
        assert not site.traces
        site.start("two", ["fails"])
        wait_for(lambda: "ValueError: a bug" in [end.said for end in site.ends], "the failure")
        assert "Traceback" in site.traces[0]
    finally:
        site.stop()
