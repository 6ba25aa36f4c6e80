"""A device's folder is copied, and put back: what was answered since counts, and rounds go on."""

import shutil

import pytest
import yaml

from edgeveil.privacy.ledger import LEDGER_FILE, read_ledger
from edgeveil_cloud.stored_jobs import wire_id
from edgeveil_tools.cli import main
from tests.kits.live_site import LiveSite, wait_for

pytestmark = pytest.mark.drill
DEVICES = 5
SOUGHT = "older than the proxy's"


class CopiedSite(LiveSite):
    """Five devices in processes of their own."""

    def __init__(self, folder):
        super().__init__(folder, devices=DEVICES)
        self.copies = folder / "copies"

    def begin(self):
        self.start("cloud", self.site.cloud)
        self.start("proxy", self.site.proxy)
        for number in range(1, DEVICES + 1):
            self.start_device(number)
        self.wait_ready()

    def start_device(self, number):
        self.start(f"edge-{number}", self.site.edges[number - 1])

    def copy(self, number):
        """Its state as it is now."""
        copied = self.copies / str(len(list(self.copies.glob("*"))))
        shutil.copytree(self.spec.edge_state(number), copied)
        return copied

    def copied_after_a_job(self):
        """All have learnt once; the first device's state then. The device goes on."""
        self.begin()
        self.job()
        self.stop("edge-1")
        copied = self.copy(1)
        self.start_device(1)
        wait_for(lambda: self.proxy_status()["online"] == DEVICES, "the device again")
        return copied

    def put_back(self, number, copied):
        shutil.rmtree(self.spec.edge_state(number))
        shutil.copytree(copied, self.spec.edge_state(number))

    def job(self, rounds=2):
        """One job; its name in ledgers, and the uploads of each round."""
        found = self.completed(self.submit(rounds=rounds, every=0))
        return wire_id(found["id"]).hex(), [round["uploads"] for round in found["exchanges"]]

    def accounts(self, number):
        state = self.spec.edge_state(number)
        assert main(["ledger", str(state)]) == 0
        (account,) = read_ledger(state / LEDGER_FILE).accounts.values()
        return account


@pytest.fixture
def live(tmp_path):
    with CopiedSite(tmp_path) as site:
        yield site


def test_a_state_that_is_put_back_forgets_no_answer(live):
    early = live.copied_after_a_job()
    _job, uploads = live.job()
    assert set(uploads) == {DEVICES}
    live.stop("edge-1")
    whole = live.accounts(1)

    live.put_back(1, early)
    assert len(live.accounts(1)) == len(whole) - 1, "the copy knows nothing of the second job"
    live.start_device(1)
    wait_for(lambda: SOUGHT in live.log("edge-1"), "the word that it is behind")
    _job, uploads = live.job()
    assert set(uploads) == {DEVICES}, "it answers again, without a visit"
    after = live.accounts(1)
    for job, entry in whole.items():
        assert after[job].spent.training.epsilon >= entry.spent.training.epsilon > 0
        assert after[job].spent.inference.epsilon >= entry.spent.inference.epsilon
    assert [entry.elsewhere for entry in after.values()] == [False, True, False]


def test_of_two_copies_neither_keeps_its_answers_from_the_other(live):
    twin = live.copied_after_a_job()
    first, _uploads = live.job()
    live.stop("edge-1")
    original = live.copy(1)

    live.put_back(1, twin)  # the twin, on a box of its own
    live.start_device(1)
    wait_for(lambda: SOUGHT in live.log("edge-1"), "the twin's word")
    second, uploads = live.job()
    assert set(uploads) == {DEVICES}
    live.stop("edge-1")
    assert live.accounts(1)[first].elsewhere and not live.accounts(1)[second].elsewhere

    live.put_back(1, original)
    words = live.log("edge-1").count(SOUGHT)
    live.start_device(1)
    wait_for(lambda: live.log("edge-1").count(SOUGHT) > words, "the original's word")
    assert live.accounts(1)[second].elsewhere and not live.accounts(1)[first].elsewhere


def test_two_copies_at_once_hold_up_no_job_and_forget_no_answer(live, tmp_path):
    twin = live.copied_after_a_job()
    text = yaml.safe_load(live.site.edges[0].read_text())
    text["edge"]["state_dir"] = str(twin)
    config = live.site.edges[0].with_name("twin.yaml")
    config.write_text(yaml.safe_dump(text))
    live.start("edge-twin", config)
    wait_for(lambda: "broker_connected" in live.log("edge-twin"), "the twin's connection")
    job, uploads = live.job(rounds=4)
    assert min(uploads) >= DEVICES - 1
    live.stop("edge-twin")
    live.stop("edge-1")
    rounds = uploads.count(DEVICES)
    for state in (live.spec.edge_state(1), twin):  # whichever was first at the proxy: both paid
        (account,) = read_ledger(state / LEDGER_FILE).accounts.values()
        assert account[job].elsewhere or len(account[job].answers) >= rounds
