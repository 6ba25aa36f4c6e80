"""What stands in docs/examples runs, and keeps outputs that are those of a run."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kits.commands import changed
from tests.kits.live_site import LiveSite, wait_for
from tests.kits.notebooks import run_cells

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def test_the_notebook_runs_and_its_kept_outputs_are_its_own():
    notebook = json.loads((EXAMPLES / "quickstart.ipynb").read_text(encoding="utf-8"))
    with contextlib.chdir(EXAMPLES):
        found = run_cells(notebook)
    kept = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [[sorted(one.get("data", one)) for one in cell] for cell in found] == [
        [sorted(one.get("data", one)) for one in cell] for cell in kept
    ]
    assert all(kept)
    # What no library's rounding moves is the same to the letter: the job, its soundness, its price.
    assert found[:4] == kept[:4]


def test_an_application_with_a_device_inside_learns_and_predicts(tmp_path):
    with LiveSite(tmp_path, engine="amqtt", protocol=4) as live:
        live.start_servers()
        live.start("edge", *live.site.edges[1:])
        mine = live.site.edges[0]
        with changed(mine) as site:  # its records come from the application alone
            site["edge"]["data"] = {"name": "digits", "source": "csv", "path": "absent.csv"}
        command = [sys.executable, str(EXAMPLES / "embedded_client.py"), str(mine)]
        application = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            live.wait_ready()
            job = live.finish(live.submit(rounds=2, every=1))
            said = application.communicate(timeout=60)[0].decode()
        finally:
            application.kill()
        assert job["status"] == "completed", job["reason"]
        assert [one["uploads"] for one in job["exchanges"]] == [5] * 4  # this one among them
        assert application.returncode == 0, said
        assert "answered without records" not in said
        for line in ("model in use: 0001-", "spent on training: ", "'record': 3", "stopped"):
            assert line in said, said
        wait_for(lambda: live.proxy_status()["online"] == 4, "its good-bye", 10)
