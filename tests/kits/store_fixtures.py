"""Stores of this version, kept for later ones: `python -m tests.kits.store_fixtures FOLDER`.

A real site completes one job and begins another; then cloud, proxy and one device are backed up. A
version's files are never changed: later programs must open them."""

import gzip
import json
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from edgeveil.config.site_files import load_site
from edgeveil.privacy.ledger import LEDGER_FILE, read_ledger
from edgeveil.privacy.ledger_chain import spent
from edgeveil_edge.store import DeviceStore
from edgeveil_tools.cli import main
from edgeveil_tools.site.state_backup import back_up
from tests.kits.live_site import LiveSite, wait_for

DEVICES = 5


def make(folder, scratch):
    with LiveSite(scratch, devices=DEVICES) as live:
        live.start_all()
        done = live.submit(rounds=2, every=1)
        assert live.finish(done)["status"] == "completed"
        device = live.spec.edge_state(1) / "device.sqlite"
        wait_for(lambda: _has_release(device), "its release on the device")
        live.stop("edge")
        live.stop("proxy")
        # The cloud is not notified, and starts the second job.
        revoked = live.site.device_ids[-1]
        assert main(["proxy", "revoke", "--config", str(live.site.proxy), revoked]) == 0
        waiting = live.submit(rounds=2, every=0)
        wait_for(lambda: live.client.job(waiting)["status"] == "running", "the second job's start")
        live.stop("cloud")
        folder.mkdir(parents=True)
        files = {"cloud": live.site.cloud, "proxy": live.site.proxy, "edge": live.site.edges[0]}
        for role, config in files.items():
            archive = scratch / f"{role}.backup"
            back_up(load_site(config), archive)
            with (folder / f"{role}.backup.gz").open("wb") as out:
                out.write(gzip.compress(archive.read_bytes(), 9, mtime=0))
        account = read_ledger(live.spec.edge_state(1) / LEDGER_FILE).account("digits")
        facts = {
            "done": done,
            "waiting": waiting,
            "devices": list(live.site.device_ids),
            "revoked": revoked,
            "training_epsilon": spent(account).epsilon,
            "inference_epsilon": spent(account, purpose="infer").epsilon,
        }
        (folder / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")


def _has_release(device):
    with closing(DeviceStore(device)) as kept:
        return kept.load().release_sequence > 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        make(Path(sys.argv[1]), Path(made))
