"""A device's folder is copied, and put back: what was answered since counts, and rounds go on."""

import shutil

import pytest

from edgeveil.privacy.ledger import LEDGER_FILE, read_ledger
from edgeveil_cloud.stored_jobs import wire_id
from edgeveil_tools.cli import main
from tests.kits.commands import changed
from tests.kits.live_site import LiveSite, wait_for

pytestmark = pytest.mark.drill
DEVICES = 5
SOUGHT = "older than the proxy's"


class CopiedSite(LiveSite):
    def __init__(self, folder):
        super().__init__(folder, devices=DEVICES)
        self.copies = folder / "copies"

    def start_first(self):
        self.start("edge-1", self.site.edges[0])

    def copy(self):
        copied = self.copies / str(len(list(self.copies.glob("*"))))
        return shutil.copytree(self.spec.edge_state(1), copied)

    def copied_after_a_job(self):
        self.start_each()
        self.job()
        self.stop("edge-1")
        copied = self.copy()
        self.start_first()
        wait_for(lambda: self.proxy_status()["online"] == DEVICES, "the device again")
        return copied

    def go_on_from(self, copied):
        """The first device finds the copy in its state's place, and hears that it is behind."""
        shutil.rmtree(self.spec.edge_state(1))
        shutil.copytree(copied, self.spec.edge_state(1))
        before, words = self.accounts(), self.log("edge-1").count(SOUGHT)
        self.start_first()
        wait_for(lambda: self.log("edge-1").count(SOUGHT) > words, "the word that it is behind")
        return before

    def job(self, rounds=2):
        found = self.completed(self.submit(rounds=rounds, every=0))
        return wire_id(found["id"]).hex(), [round["uploads"] for round in found["exchanges"]]

    def accounts(self):
        state = self.spec.edge_state(1)
        assert main(["ledger", str(state)]) == 0
        return account_of(state)


def account_of(state):
    (account,) = read_ledger(state / LEDGER_FILE).accounts.values()
    return account


@pytest.fixture
def live(tmp_path):
    with CopiedSite(tmp_path) as site:
        yield site


def test_a_state_that_is_put_back_forgets_no_answer_nor_does_the_one_it_stood_in_for(live):
    early = live.copied_after_a_job()
    first, uploads = live.job()
    assert set(uploads) == {DEVICES}
    live.stop("edge-1")
    whole, later = live.accounts(), live.copy()
    assert len(live.go_on_from(early)) == len(whole) - 1, "it knows nothing of the second job"
    second, uploads = live.job()
    assert set(uploads) == {DEVICES}, "it answers again, without a visit"
    live.stop("edge-1")
    after = live.accounts()
    for job, entry in whole.items():
        assert after[job].spent.training.epsilon >= entry.spent.training.epsilon > 0
        assert after[job].spent.inference.epsilon >= entry.spent.inference.epsilon
    assert [job for job, entry in after.items() if entry.elsewhere] == [first]
    live.go_on_from(later)  # whose device did not know of the third job
    assert [job for job, entry in live.accounts().items() if entry.elsewhere] == [second]


def test_two_copies_at_once_hold_up_no_job_and_forget_no_answer(live, tmp_path):
    twin = live.copied_after_a_job()
    config = shutil.copy(live.site.edges[0], live.site.edges[0].with_name("twin.yaml"))
    with changed(config) as text:
        text["edge"]["state_dir"] = str(twin)
    live.start("edge-twin", config)
    wait_for(lambda: "broker_connected" in live.log("edge-twin"), "the twin's connection")
    job, uploads = live.job(rounds=4)
    assert min(uploads) >= DEVICES - 1
    live.stop("edge-twin")
    live.stop("edge-1")
    rounds = uploads.count(DEVICES)
    for state in (live.spec.edge_state(1), twin):  # whichever was first at the proxy: both paid
        entry = account_of(state)[job]
        assert entry.elsewhere or len(entry.answers) >= rounds
