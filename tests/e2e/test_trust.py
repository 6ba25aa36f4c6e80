"""A site under an offline root: keys are rotated while a job runs, and a registry is rebuilt."""

import json
import shutil

import pytest

from edgeveil.trust.bundle import TrustBundle
from edgeveil_tools.cli import main
from tests.kits.commands import changed
from tests.kits.live_site import LiveSite, site_job, wait_for

pytestmark = pytest.mark.slow


class TrustedSite(LiveSite):
    """A live site whose parties pin a root in place of each other's keys."""

    def __init__(self, folder, **options):
        super().__init__(folder, **options)
        self.root, self.trust = folder / "root", self.spec.folder / "trust.json"
        cloud, proxy = self.spec.folder / "state" / "cloud", self.spec.folder / "state" / "proxy"
        assert main(["keys", "--config", str(self.site.cloud)]) == 0
        self.command(
            "init",
            *("--cloud-jobs", str(cloud / "cloud.pub")),
            *("--cloud-releases", str(cloud / "releases.pub")),
            *("--proxy-rosters", str(proxy / "proxy.pub")),
        )
        for path in (self.site.cloud, self.site.proxy, *self.site.edges):
            with changed(path) as text:
                (block,) = text.values()
                for key in ("cloud_key_file", "proxy_key_file"):
                    block.pop(key, None)
                block["trust_file"] = "trust.json"

    def command(self, name, *rest):
        assert main(["trust", name, str(self.root), *rest, "--no-passphrase"]) == 0
        shutil.copy(self.root / "trust.json", self.trust)

    def rotate(self, role, *, kind, name):
        """As an operator does: the next key is made where it stays, the root names it."""
        config = self.site.cloud if kind == "cloud" else self.site.proxy
        assert main(["keys", "--config", str(config), "--next"]) == 0
        following = self.spec.folder / "state" / kind / f"{name}-next.pub"
        self.command("rotate", role, str(following))

    def submit_to(self, devices, rounds):
        return self.client.submit_yaml(site_job(devices, rounds=rounds).encode())

    def versions(self):
        files = self.spec.folder.glob("state/edge-*/trust.json")
        found = [json.loads(TrustBundle.load(path).delegations) for path in files]
        return {one["signed"]["version"] for one in found}


@pytest.fixture
def live(tmp_path):
    with TrustedSite(tmp_path, devices=6) as site:
        yield site


def test_every_key_is_rotated_while_a_job_runs(live):
    live.start_all()
    job = live.submit(rounds=12, every=4)
    wait_for(lambda: live.committed(job) >= 3, "three rounds")
    for role, kind, name in (
        ("cloud-jobs", "cloud", "cloud"),
        ("cloud-releases", "cloud", "releases"),
        ("proxy-rosters", "proxy", "proxy"),
    ):
        before = live.committed(job)
        live.rotate(role, kind=kind, name=name)
        wait_for(lambda: live.committed(job) > before + 1, f"rounds after {role} was rotated")  # noqa: B023
    # What devices paid is one answer a round: a rotation costs no ε.
    assert {round["uploads"] for round in live.completed(job)["exchanges"]} == {6}
    wait_for(lambda: live.versions() == {4}, "every device's newest delegations")
    live.wait_released()


def test_a_rebuilt_registry_is_told_and_vouched_for(live):
    live.start_all()
    state = live.spec.folder / "state" / "proxy"
    wait_for(lambda: "roster enrolled=6" in live.log("cloud"), "the roster")
    live.stop("proxy")
    (state / "registry.sqlite").unlink()
    for config in live.site.edges:
        assert main(["keys", "--config", str(config), "--out", f"{config}.json"]) == 0
    proxy = ["--config", str(live.site.proxy)]
    assert main(["proxy", "admit", *proxy, *(f"{one}.json" for one in live.site.edges)]) == 0
    assert main(["proxy", "revoke", *proxy, live.site.device_ids[0]]) == 0
    live.start("proxy", live.site.proxy)
    wait_for(lambda: "foreign_registry" in live.log("cloud"), "the refusal")
    job = live.submit(rounds=2, every=0)
    wait_for(lambda: live.client.job(job)["status"] == "paused", "the pause")
    why = live.client.job(job)["reason"]
    assert "registry was rebuilt" in why
    assert live.client.job(job)["exchanges"] == [], "nobody was asked, and nobody paid"

    lineage = why.split("another one, ")[1].split(",")[0]
    live.command("rotate", "registry", lineage)
    wait_for(lambda: "roster enrolled=5" in live.log("cloud"), "the new roster")
    live.client.cancel(job)
    found = live.completed(live.submit_to(5, rounds=2))
    assert {round["uploads"] for round in found["exchanges"]} == {5}, "the revoked one is out"


@pytest.mark.drill
def test_a_device_gets_a_new_sealing_key_while_a_job_runs(live):
    live.start_all()
    wait_for(lambda: "roster enrolled=6" in live.log("cloud"), "the roster")
    job = live.submit_to(5, rounds=8)
    wait_for(lambda: live.committed(job) >= 2, "two rounds")
    live.stop("edge")
    (live.spec.edge_state(1) / "opening.key").unlink()
    assert main(["keys", "--next", "--config", str(live.site.edges[0])]) == 0
    rosters = live.log("cloud").count("enrolled=6")
    live.start("edge", *live.site.edges)
    wait_for(lambda: live.log("cloud").count("enrolled=6") > rosters, "the new key")
    assert live.client.job(job)["ended_at"] is None, "the job outlasts the change"
    found = live.completed(job)
    uploads = [round["uploads"] for round in found["exchanges"]]
    assert (uploads[0], uploads[-1]) == (6, 5), "the job goes on without it"
    found = live.finish(live.submit(rounds=1, every=0))
    assert {round["uploads"] for round in found["exchanges"]} == {6}
    assert main(["ledger", str(live.spec.edge_state(1))]) == 0
