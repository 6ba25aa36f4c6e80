"""A fleet is brought from earlier code to today's, party by party, while a job runs."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import astuple, replace

import pytest
import yaml

from edgeveil.config.site_files import load_site
from edgeveil.privacy.ledger import LEDGER_FILE, read_ledger
from edgeveil_proxy.registry import REGISTRY_FILE
from tests.kits.earlier_code import BEFORE_HALF, EARLIER, earlier_code
from tests.kits.live_site import LiveSite, site_job, wait_for

pytestmark = pytest.mark.drill
DEVICES = 5
_REGISTRY_OF_BEFORE = """
ALTER TABLE device DROP COLUMN move_order;
ALTER TABLE device DROP COLUMN moved_away;
PRAGMA user_version = 2;
"""
_PROVISION = """
import json, sys
from pathlib import Path
from edgeveil.sites.policy import Policy
from edgeveil_tools.site.provision import Ports, SitePlan, provision

ports, devices = json.loads(sys.argv[2])
policy = Policy(max_inference_epsilon=500).with_room(500 // devices)
plan = SitePlan(Path(sys.argv[1]), devices=devices, ports=Ports(*ports), policy=policy)
print(json.dumps(provision(plan).passwords))
"""
LATER_KEYS = {"max_jobs:", "max_records:"}
ROUNDS = 24


class UpgradedSite(LiveSite):
    """Every party in a process of its own, by today's code or by earlier one."""

    def __init__(self, folder, commit):
        self._earlier = earlier_code(folder / "earlier", commit)
        self._today = {}
        self._commit = commit
        super().__init__(folder, devices=DEVICES)
        if commit == EARLIER:
            self._as_earlier_code_leaves_it()
        self.configs = {"cloud": self.site.cloud, "proxy": self.site.proxy}
        self.configs |= {f"edge-{n}": path for n, path in enumerate(self.site.edges, start=1)}

    def provisioned(self):
        """The site's files as that code writes them, where it can."""
        site = super().provisioned()
        if self._commit == EARLIER:
            return site
        shutil.rmtree(self.spec.folder)
        numbers = json.dumps([astuple(self.spec.ports), DEVICES])
        made = subprocess.run(
            [sys.executable, "-c", _PROVISION, str(self.spec.folder), numbers],
            capture_output=True,
            text=True,
            env=self._earlier,
            cwd=self.spec.folder.parent,
        )
        assert made.returncode == 0, made.stderr
        return replace(site, passwords=json.loads(made.stdout))

    def _as_earlier_code_leaves_it(self):
        """The site was made by today's code: without what earlier code would not have written."""
        for path in self.site.edges:
            today = self._today[path] = path.read_text(encoding="utf-8")
            known = (
                one for one in today.splitlines(keepends=True) if not LATER_KEYS & {*one.split()}
            )
            path.write_text("".join(known), "utf-8")
        registry = load_site(self.site.proxy).state_dir / REGISTRY_FILE
        with closing(sqlite3.connect(registry)) as db:
            db.executescript(_REGISTRY_OF_BEFORE)

    def begin(self, name, *, earlier):
        if not earlier and (today := self._today.get(self.configs[name])):
            self.configs[name].write_text(today, "utf-8")  # as its owner does with an upgrade
        command = [sys.executable, "-m", "edgeveil_tools.cli", name.split("-")[0], "--config"]
        with (self.logs / name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*command, str(self.configs[name])],
                stdout=log,
                stderr=log,
                env=self._earlier if earlier else dict(os.environ),
                cwd=self.logs,
            )

    def upgrade(self, name):
        assert self.stop(name) == 0, self.log(name)
        self.begin(name, earlier=False)

    def resumes_by_itself(self, job, after):
        wait_for(self.answers, "the cloud's answer")
        before = self.committed(job)
        wait_for(
            lambda: self.committed(job) > before or self.client.job(job)["ended_at"],
            f"a round after {after} was brought up",
        )


@pytest.fixture
def live(tmp_path, request):
    with UpgradedSite(tmp_path, getattr(request, "param", EARLIER)) as site:
        yield site


SERVERS, BOXES = ["proxy", "cloud"], [f"edge-{number}" for number in range(1, DEVICES + 1)]


@pytest.mark.parametrize("live", [EARLIER, BEFORE_HALF], indirect=True)
@pytest.mark.parametrize("first", ["servers", "devices"])
def test_a_job_runs_through_while_every_party_is_brought_up(live, first):
    for name in live.configs:
        live.begin(name, earlier=True)
    live.wait_ready()
    job = live.submit(rounds=ROUNDS, every=0)
    wait_for(lambda: live.committed(job) >= 1, "the first round, all by earlier code")
    order = [*SERVERS, *BOXES] if first == "servers" else [*BOXES, *reversed(SERVERS)]
    for name in order:
        live.upgrade(name)
        live.resumes_by_itself(job, name)
    found = live.completed(job)
    assert min(round["uploads"] for round in found["exchanges"]) >= DEVICES - 1
    again = live.finish(live.submit(rounds=1, every=0))
    assert {round["uploads"] for round in again["exchanges"]} == {DEVICES}
    for number in range(1, DEVICES + 1):
        book = read_ledger(live.spec.edge_state(number) / LEDGER_FILE)
        (account,) = book.accounts.values()
        assert not any(entry.elsewhere for entry in account.values())
    for name in live.configs:
        assert "Traceback" not in live.log(name)
        # A cloud of before counts what a proxy says of its link, once a start, and goes on.
        of_before = first == "servers" and name == "cloud"
        for word in ("unknown_version", "unexpected_body", *(["malformed"] * (not of_before))):
            assert word not in live.log(name), live.log(name)


def test_devices_of_before_decline_what_they_cannot_read(live):
    """A job with a key that came later is for none of them; the next one they answer."""
    for name in live.configs:
        live.begin(name, earlier=name in BOXES)
    live.wait_ready()
    known = yaml.safe_load(site_job(DEVICES, rounds=1))
    known["train"]["intercept"] = False
    del known["unsupervised"]  # what a device sends for its clusters is another sum by now
    text = yaml.safe_dump({**known, "federated_evaluation": {"epsilon": 2}})
    found = live.finish(live.client.submit_yaml(text.encode()))
    assert found["status"] != "completed"
    assert not found["exchanges"]
    again = live.finish(live.client.submit_yaml(yaml.safe_dump(known).encode()))
    assert {round["uploads"] for round in again["exchanges"]} == {DEVICES}
    for name in BOXES:
        assert "Traceback" not in live.log(name)
