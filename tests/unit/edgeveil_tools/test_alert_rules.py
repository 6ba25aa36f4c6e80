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
ONLINE = f'edgeveil_devices{{{PROXY},state="online"}}'
ENROLLED = f'edgeveil_devices{{{PROXY},state="enrolled"}}'
RUNNING = f'edgeveil_jobs{{{CLOUD},status="running"}}'
PAUSED = f'edgeveil_jobs{{{CLOUD},status="paused"}}'
COMMITTED = f'edgeveil_rounds_total{{{CLOUD},result="committed"}}'
REPEATED = f'edgeveil_rounds_total{{{CLOUD},result="repeated"}}'
LINK = f'edgeveil_link_up{{{PROXY},hop="edge"}}'
FORGED = f'edgeveil_refused_total{{{PROXY},reason="forged"}}'
DECLINED = f'edgeveil_answers_total{{{PROXY},outcome="budget"}}'
UPLOADED = f'edgeveil_answers_total{{{PROXY},outcome="uploaded"}}'
FREE, SIZE = (f"edgeveil_state_{what}_bytes{{{PROXY}}}" for what in ("free", "size"))
SPOOL, INBOX = (f"edgeveil_{what}_bytes{{{PROXY}}}" for what in ("spool", "inbox"))
ROLLED_BACK = f'edgeveil_release_reports{{{CLOUD},outcome="rolled_back"}}'
IN_USE = f'edgeveil_release_reports{{{CLOUD},outcome="in_use"}}'
EXPIRES = f'edgeveil_trust_expires_timestamp_seconds{{{CLOUD},document="root"}}'
MEMORY = f"process_resident_memory_bytes{{{PROXY}}}"
CASES = {  # series that make an alert fire, and others that do not
    "EdgeVeilDown": ({f"up{{{PROXY}}}": "0x30"}, {f"up{{{PROXY}}}": "1x30"}),
    "EdgeVeilLinkDown": ({LINK: "0x30"}, {LINK: "1x30"}),
    # The very first, of a series that began at 0.
    "EdgeVeilSomebodyForges": ({FORGED: "0x25 1x5"}, {FORGED: "0x30"}),
    "EdgeVeilPartOfFleetOffline": (
        {ONLINE: "6x30", ENROLLED: "10x30"},
        {ONLINE: "8x30", ENROLLED: "10x30"},
    ),
    "EdgeVeilDevicesDecline": (
        {DECLINED: "0+3x30", UPLOADED: "0x30"},
        {DECLINED: "0+1x30", UPLOADED: "0+5x30"},
    ),
    "EdgeVeilDiskNearlyFull": ({FREE: "5x30", SIZE: "100x30"}, {FREE: "50x30", SIZE: "100x30"}),
    "EdgeVeilJobPaused": ({PAUSED: "0x20 1x10"}, {RUNNING: "1x30"}),
    "EdgeVeilNoRoundCommitted": (
        {RUNNING: "1x30", COMMITTED: "7x30"},
        {RUNNING: "1x30", COMMITTED: "0+1x30"},
    ),
    "EdgeVeilRoundsRepeated": ({REPEATED: "0+1x30"}, {REPEATED: "0x20 1x10"}),
    "EdgeVeilNobodyOnline": (
        {ONLINE: "0x30", ENROLLED: "10x30"},
        {ONLINE: "0x30", ENROLLED: "0x30"},  # a fleet that has nobody yet
    ),
    "EdgeVeilSpoolNearItsLimit": ({SPOOL: "1000000000x30"}, {SPOOL: "500000000x30"}),
    "EdgeVeilFallingBehind": ({INBOX: "9000000x30"}, {INBOX: "0x27 9000000x3"}),  # a burst
    "EdgeVeilReleaseFails": ({ROLLED_BACK: "0x20 1x10"}, {IN_USE: "5x30"}),
    # promtool's time begins at 0
    "EdgeVeilTrustEnds": ({EXPIRES: "1000000x30"}, {EXPIRES: "2000000x30"}),
    "EdgeVeilMemoryGrows": ({MEMORY: "600000000x30"}, {MEMORY: "100000000x30"}),
}


def rules():
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def test_every_alert_is_played_and_names_reasons_and_outcomes_that_there_are():
    assert set(CASES) == set(rules())
    assert {rule["labels"]["severity"] for rule in rules().values()} == {"critical", "warning"}
    forged = rules()["EdgeVeilSomebodyForges"]["expr"].partition('=~"')[2].partition('"')[0]
    assert set(forged.split("|")) <= set(KNOWN_REASONS)
    declines = rules()["EdgeVeilDevicesDecline"]["expr"].partition('=~"')[2].partition('"')[0]
    assert set(declines.split("|")) < set(ANSWER_OUTCOMES)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (prometheus)")
def test_an_alert_fires_for_its_cause_alone(tmp_path):
    def played(fires):
        """Run promtool with the expectation that none is firing."""
        tests = []
        for name, cases in CASES.items():
            series = [{"series": one, "values": v} for one, v in cases[not fires].items()]
            case = {"eval_time": "29m", "alertname": name, "exp_alerts": []}
            tests.append({"interval": "1m", "input_series": series, "alert_rule_test": [case]})
        path = tmp_path / "cases.yml"
        path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": tests}))
        done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    assert played(False)[0] == 0
    _, output = played(True)
    assert [name for name in CASES if f'alertname="{name}"' not in output] == []
