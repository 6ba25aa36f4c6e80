"""The owner's view of the ledger: complete, in numbers that agree, and never of a broken one."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
import yaml

from edgeveil.privacy.events import ClaimedEvent
from edgeveil.privacy.gaussian_mechanism import gaussian_event, shared_gaussian
from edgeveil.privacy.guarantee import down
from edgeveil.privacy.laplace_mechanism import softmax_event
from edgeveil.privacy.ledger import LEDGER_FILE, Ledger
from edgeveil.privacy.policy import JobRequest, Limits, price
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_tools import cli

LINEAR = gaussian_event("sum of linear terms", 2**24, 0.5, 30, grid_bits=24)
SOFTMAX = softmax_event(10, 4.0)
CLAIM = ClaimedEvent(what="noised covariance", unit="record", claimed_epsilon=1.5)
WIDE = Limits(20, 50, 1e-4, max_inference_epsilon=100, accept_unproven=True)


@pytest.fixture
def state(tmp_path):
    """Two jobs on `digits`: one closed after two releases, one open and still without any."""
    state = tmp_path / "state"
    state.mkdir()
    DeviceIdentity.load_or_create(state)
    ledger = Ledger(state / LEDGER_FILE, "digits")
    ledger.open_job(JobRequest("job-a", 1e-5, (LINEAR,) * 3 + (SOFTMAX,)), WIDE)
    ledger.commit("job-a", 1, [LINEAR], b"one")
    ledger.commit("job-a", 2, [LINEAR, SOFTMAX], b"two")
    ledger.close_job("job-a")
    ledger.open_job(JobRequest("job-b", 1e-5, (LINEAR,)), WIDE)
    ledger.close()
    return state


@pytest.fixture
def config(state, tmp_path):
    site = {
        "name": "box",
        "broker": {"url": "mqtt://127.0.0.1:1"},
        "state_dir": str(state),
        "cloud_key_file": "cloud.pub",
        "proxy_key_file": "proxy.pub",
        "data": {"name": "digits", "source": "digits"},
        "policy": {"lifetime_epsilon": 30.0},
    }
    path = tmp_path / "edge.yaml"
    path.write_text(yaml.safe_dump({"edge": site}))
    return path


def shown(capsys, *argv):
    assert cli.main(["ledger", *map(str, argv), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_was_spent_and_on_what(state, capsys):
    found = shown(capsys, state)
    (digits,) = found["data_sets"]
    first, second = digits["jobs"]
    ledger = Ledger(state / LEDGER_FILE, "digits")
    assert first["training"]["epsilon"] == ledger.spent("job-a").epsilon
    assert digits["training"]["epsilon"] == ledger.spent().epsilon
    assert first["inference"]["epsilon"] == pytest.approx(4.0)
    assert (first["training"]["unit"], first["inference"]["unit"]) == ("record", "device")
    assert first["training"] == first["reserved"]["training"]  # closed early, and Gaussian
    assert (first["open"], second["open"], second["releases"]) == (False, True, [])
    assert [r["exchange"] for r in first["releases"]] == [1, 2]
    kinds = [(e["what"], e["mechanism"], e["status"]) for e in first["releases"][1]["events"]]
    assert kinds == [(LINEAR.what, "gaussian", "proven"), (SOFTMAX.what, "laplace", "proven")]
    assert digits["left"] is None


def test_what_counts_is_exported_with_its_price(state, capsys):
    assert cli.main(["ledger", str(state), "--export", "dp-accounting"]) == 0
    linear, softmax = json.loads(capsys.readouterr().out)
    first = shown(capsys, state)["data_sets"][0]["jobs"][0]
    assert (linear["job"], linear["unit"], linear["delta"]) == ("job-a", "record", 1e-5)
    assert linear["epsilon"] == first["training"]["epsilon"]
    (repeated,) = linear["event"]["events"]
    assert (repeated["class"], repeated["count"]) == ("SelfComposedDpEvent", 3)  # the whole plan
    assert repeated["event"]["noise_multiplier"] == LINEAR.noise_multiplier
    assert softmax["event"]["events"] == [{"class": "LaplaceDpEvent", "noise_multiplier": 0.25}]


@pytest.mark.parametrize("limit", [40.0, None])
def test_what_is_left_counts_open_reservations_and_what_all_others_may_collude_to(
    state, config, capsys, limit
):
    policy = {"lifetime_epsilon": 30.0, "lifetime_collusion_epsilon": limit}
    site = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({"edge": {**site["edge"], "policy": policy}}))
    shared = JobRequest("job-c", 1e-5, (shared_gaussian(LINEAR, 9),))
    with closing(Ledger(state / LEDGER_FILE, "digits")) as ledger:
        ledger.open_job(shared, WIDE)
    # Job-a is closed, job-b and job-c are open; all three at the δ of the policy, by its limits.
    all_events = (LINEAR,) * 4 + shared.events
    most = price(all_events, 1e-4).training
    left = shown(capsys, config)["data_sets"][0]["left"]
    assert left["lifetime_epsilon"] == pytest.approx(30.0 - most.epsilon, rel=0.01)
    assert left["max_inference_epsilon"] == pytest.approx(96.0)
    left_to_collusion = (limit or 30.0) - most.collusion_epsilon
    assert left["lifetime_collusion_epsilon"] == pytest.approx(left_to_collusion, rel=0.01)
    assert cli.main(["ledger", str(config)]) == 0
    shown_text = capsys.readouterr().out
    assert down(left["lifetime_collusion_epsilon"]) in shown_text
    assert "the least lifetime limits that admit them" in shown_text


def test_a_claimed_release_is_no_number_of_a_guarantee(state, capsys):
    ledger = Ledger(state / LEDGER_FILE, "digits")
    ledger.open_job(JobRequest("job-c", 1e-5, (CLAIM,)), WIDE)
    ledger.commit("job-c", 1, [CLAIM], b"claimed")  # and the device holds it open
    training = shown(capsys, state)["data_sets"][0]["jobs"][2]["training"]
    assert (training["epsilon"], training["status"]) == (None, "claimed")
    assert training["claimed_epsilon"] == pytest.approx(1.5)


def test_a_ledger_with_a_broken_link_is_not_shown_and_its_device_does_not_start(
    state, config, capsys
):
    with sqlite3.connect(state / LEDGER_FILE) as db:
        db.execute("UPDATE links SET exchange = 5 WHERE number = 2")
    command = [sys.executable, "-m", "edgeveil_tools.cli", "edge", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 5 and LEDGER_FILE in done.stderr
    assert (state / "identity.key").exists()
    assert cli.main(["ledger", str(state)]) == 5
    assert "link 2" in capsys.readouterr().err
