"""The alerts fire for what they are named after, and for nothing else (played by promtool)."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from edgeveil.protocol.proxy_rounds import ANSWER_OUTCOMES
from edgeveil.transport.metrics import KNOWN_REASONS

RULES = Path(__file__).parents[3] / "configs" / "prometheus" / "edgeveil-rules.yml"
PROXY = 'instance="p",job="edgeveil-proxy"'
CLOUD = 'instance="c",job="edgeveil-cloud"'
CASES = {
    "EdgeVeilDown": ({f"up{{{PROXY}}}": "0x30"}, {f"up{{{PROXY}}}": "1x30"}),
    "EdgeVeilLinkDown": (
        {f'edgeveil_link_up{{{PROXY},hop="edge"}}': "0x30"},
        {f'edgeveil_link_up{{{PROXY},hop="edge"}}': "1x30"},
    ),
    "EdgeVeilSomebodyForges": (  # the very first, of a series that began at 0
        {f'edgeveil_refused_total{{{PROXY},reason="forged"}}': "0x25 1x5"},
        {f'edgeveil_refused_total{{{PROXY},reason="forged"}}': "0x30"},
    ),
    "EdgeVeilPartOfFleetOffline": (
        {
            f'edgeveil_devices{{{PROXY},state="online"}}': "6x30",
            f'edgeveil_devices{{{PROXY},state="enrolled"}}': "10x30",
        },
        {
            f'edgeveil_devices{{{PROXY},state="online"}}': "8x30",
            f'edgeveil_devices{{{PROXY},state="enrolled"}}': "10x30",
        },
    ),
    "EdgeVeilDevicesDecline": (
        {
            f'edgeveil_answers_total{{{PROXY},outcome="budget"}}': "0+3x30",
            f'edgeveil_answers_total{{{PROXY},outcome="uploaded"}}': "0x30",
        },
        {
            f'edgeveil_answers_total{{{PROXY},outcome="budget"}}': "0+1x30",
            f'edgeveil_answers_total{{{PROXY},outcome="uploaded"}}': "0+5x30",
        },
    ),
    "EdgeVeilDiskNearlyFull": (
        {
            f"edgeveil_state_free_bytes{{{PROXY}}}": "5x30",
            f"edgeveil_state_size_bytes{{{PROXY}}}": "100x30",
        },
        {
            f"edgeveil_state_free_bytes{{{PROXY}}}": "50x30",
            f"edgeveil_state_size_bytes{{{PROXY}}}": "100x30",
        },
    ),
    "EdgeVeilJobPaused": (
        {f'edgeveil_jobs{{{CLOUD},status="paused"}}': "0x20 1x10"},
        {f'edgeveil_jobs{{{CLOUD},status="running"}}': "1x30"},
    ),
    "EdgeVeilNoRoundCommitted": (
        {
            f'edgeveil_jobs{{{CLOUD},status="running"}}': "1x30",
            f'edgeveil_rounds_total{{{CLOUD},result="committed"}}': "7x30",
        },
        {
            f'edgeveil_jobs{{{CLOUD},status="running"}}': "1x30",
            f'edgeveil_rounds_total{{{CLOUD},result="committed"}}': "0+1x30",
        },
    ),
    "EdgeVeilRoundsRepeated": (
        {f'edgeveil_rounds_total{{{CLOUD},result="repeated"}}': "0+1x30"},
        {f'edgeveil_rounds_total{{{CLOUD},result="repeated"}}': "0x20 1x10"},
    ),
    "EdgeVeilNobodyOnline": (
        {
            f'edgeveil_devices{{{PROXY},state="online"}}': "0x30",
            f'edgeveil_devices{{{PROXY},state="enrolled"}}': "10x30",
        },
        {  # a fleet that has nobody yet
            f'edgeveil_devices{{{PROXY},state="online"}}': "0x30",
            f'edgeveil_devices{{{PROXY},state="enrolled"}}': "0x30",
        },
    ),
    "EdgeVeilSpoolNearItsLimit": (
        {f"edgeveil_spool_bytes{{{PROXY}}}": "1000000000x30"},
        {f"edgeveil_spool_bytes{{{PROXY}}}": "500000000x30"},
    ),
    "EdgeVeilFallingBehind": (
        {f"edgeveil_inbox_bytes{{{PROXY}}}": "9000000x30"},
        {f"edgeveil_inbox_bytes{{{PROXY}}}": "0x27 9000000x3"},  # a burst
    ),
    "EdgeVeilReleaseFails": (
        {f'edgeveil_release_reports{{{CLOUD},outcome="rolled_back"}}': "0x20 1x10"},
        {f'edgeveil_release_reports{{{CLOUD},outcome="in_use"}}': "5x30"},
    ),
    "EdgeVeilTrustEnds": (  # promtool's time begins at 0
        {f'edgeveil_trust_expires_timestamp_seconds{{{CLOUD},document="root"}}': "1000000x30"},
        {f'edgeveil_trust_expires_timestamp_seconds{{{CLOUD},document="root"}}': "2000000x30"},
    ),
    "EdgeVeilMemoryGrows": (
        {f"process_resident_memory_bytes{{{PROXY}}}": "600000000x30"},
        {f"process_resident_memory_bytes{{{PROXY}}}": "100000000x30"},
    ),
}


def rules():
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def test_every_alert_has_a_severity():
    assert {rule["labels"]["severity"] for rule in rules().values()} == {"critical", "warning"}


def test_every_alert_is_played():
    assert set(CASES) == set(rules())


def test_alerts_name_reasons_and_outcomes_that_there_are():
    forged = rules()["EdgeVeilSomebodyForges"]["expr"].partition('=~"')[2].partition('"')[0]
    assert set(forged.split("|")) <= set(KNOWN_REASONS)
    declines = rules()["EdgeVeilDevicesDecline"]["expr"].partition('=~"')[2].partition('"')[0]
    assert set(declines.split("|")) < set(ANSWER_OUTCOMES)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("fires", [True, False])
def test_an_alert_fires_for_its_cause_alone(tmp_path, name, fires):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: apt install prometheus)")
    series = CASES[name][not fires]
    inputs = [{"series": one, "values": values} for one, values in series.items()]
    # What promtool makes of the alert is read off its answer: expected is that none is firing.
    case = {"eval_time": "29m", "alertname": name, "exp_alerts": []}
    test = {"interval": "1m", "input_series": inputs, "alert_rule_test": [case]}
    path = tmp_path / "case.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True)
    assert (done.returncode != 0) is fires, done.stdout + done.stderr
    assert (f'alertname="{name}"' in done.stdout + done.stderr) is fires
