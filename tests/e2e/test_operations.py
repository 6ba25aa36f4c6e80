"""What an operator sees of a running site: health, metrics and logs, and what they never see."""

import asyncio
import json
import logging
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from edgeveil.crypto.keys import SigningKey
from edgeveil.protocol.messages import BlobPart, Hello, RoundId, Signer, Upload, encode
from edgeveil.protocol.transfer import describe
from edgeveil.transport.link import LinkSettings, Topics
from edgeveil.transport.mqtt_link import MqttLink
from edgeveil.trust.watch import TrustWatch
from edgeveil_tools.cli import main
from tests.kits.commands import changed
from tests.kits.live_site import LiveSite, page, wait_for

pytestmark = pytest.mark.slow
CONFIGS = Path(__file__).parents[2] / "configs"


def scraped(text):
    families = text_string_to_metric_families(text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}


def found(samples, name, **labels):
    return samples[f"edgeveil_{name}", tuple(sorted(labels.items()))]


class Watched(LiveSite):
    def __init__(self, folder):
        super().__init__(folder)
        for path in (self.site.cloud, self.site.proxy, *self.site.edges):
            with changed(path) as text:
                (block,) = text.values()
                block["log"] = {"level": "debug", "format": "json"}
        self.pages = {"cloud": self.spec.url, "proxy": self.proxy_url()}

    def metrics(self, name):
        token = self.site.token_file.read_text().strip() if name == "cloud" else ""
        status, text = page(f"{self.pages[name]}/metrics", token)
        assert status == 200
        return scraped(text)

    def health(self, name):
        status, text = page(f"{self.pages[name]}/healthz")
        return status, json.loads(text).get("parts", []) if text else []

    def lines(self, name):
        """The JSON lines of a process; what it prints for its owner alone is not among them."""
        return [json.loads(line) for line in self.log(name).splitlines() if line[:1] == "{"]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    with Watched(tmp_path_factory.mktemp("watched")) as live:
        live.start_all()
        done = live.completed(live.submit())
        yield live, done


def test_metrics_tell_what_happened(watched):
    live, done = watched
    rounds, devices = len(done["exchanges"]), live.spec.devices
    cloud, proxy = live.metrics("cloud"), live.metrics("proxy")
    for samples, name, labels, value in (
        (cloud, "rounds_total", {"result": "committed"}, rounds),
        (cloud, "round_seconds_count", {}, rounds),
        (cloud, "jobs", {"status": "completed"}, 1),
        (cloud, "jobs", {"status": "running"}, 0),
        (cloud, "devices", {"state": "enrolled"}, devices),
        (cloud, "work_seconds_count", {"task": "absorb"}, rounds),
        (proxy, "answers_total", {"outcome": "uploaded"}, rounds * devices),
        (proxy, "rounds_total", {"result": "delivered"}, rounds),
        (proxy, "devices", {"state": "online"}, devices),
        (proxy, "credit_bytes", {}, 0),
        (proxy, "spool_bytes", {}, 0),
    ):
        assert found(samples, name, **labels) == value, (name, labels)
    end = live.client.events(done["id"], 0)[-1]["data"]["privacy"]
    for kind in ("training", "inference"):
        spent = found(cloud, "epsilon_spent", job=done["id"], kind=kind)
        assert spent == end[kind]["epsilon"] > 0
    assert found(proxy, "cache_bytes") > 0  # the release stays for devices that come late
    for samples, hops in ((cloud, ["cloud"]), (proxy, ["edge", "cloud"])):
        for hop in hops:
            assert found(samples, "link_up", hop=hop) == 1
            assert found(samples, "link_connections_total", hop=hop) >= 1
            assert found(samples, "bytes_total", hop=hop, direction="in") > 1000
        assert samples["process_resident_memory_bytes", ()] > 1 << 24
        assert samples["process_cpu_seconds_total", ()] > 0
    said = str(sorted(cloud)) + str(sorted(proxy))
    assert not any(device in said for device in live.site.device_ids)


def test_dashboards_and_alerts_read_what_processes_tell(watched):
    live, _ = watched
    token = live.site.token_file.read_text().strip()
    told = "".join(page(f"{live.pages[one]}/metrics", token)[1] for one in ("cloud", "proxy"))
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", told, re.MULTILINE))
    parts = ("_bucket", "_sum", "_count")
    known = {name for name, kind in types.items() if kind != "histogram"}
    known |= {name + part for name, kind in types.items() if kind == "histogram" for part in parts}
    trust = TrustWatch(Mock(), Mock(expires={}), logging.getLogger())  # only of a site with a root
    known |= {family.name for family in trust.collect()}
    rules = yaml.safe_load((CONFIGS / "prometheus" / "edgeveil-rules.yml").read_text())
    asked = {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}
    for path in (CONFIGS / "grafana").glob("*.json"):
        board = json.loads(path.read_text())
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        asked |= {
            f"{path.name}: {panel['title']} {target['refId']}": target["expr"]
            for panel in board["panels"]
            for target in panel["targets"]
        }
    assert len(asked) > 30
    for what, expression in asked.items():
        if expression.startswith("up{"):  # Prometheus' own
            continue
        names = set(re.findall(r"\b(?:edgeveil|process)_\w+", expression))
        assert names, what
        assert names <= known, what


def test_a_device_that_floods_is_named_to_the_operator_alone(watched, capsys):
    live, _ = watched
    device, *others = live.site.device_ids

    async def flood():
        word = live.site.passwords["edge"][device]
        link = MqttLink(LinkSettings(live.brokers["edge"].url, "f", username=device, password=word))
        await link.connect_or_raise()
        forged = Signer(device, SigningKey.generate())  # a stolen password, but not its key
        at, topic = RoundId(bytes(16), 1, 1), Topics().device_up(device)
        upload = forged.offer(Upload(at, (0,), describe(b"x", 10)), b"x")
        for message in (forged.note(Hello(device)), upload, BlobPart(bytes(32), 0, 0, b"y")):
            await link.publish(topic, encode(message))
        for frame in [b"\x01", b"\x02garbage", b"\x01\xdd\xff\xff\xff\xff", *([b"\0\0"] * 3000)]:
            await link.publish(topic, frame)
        await link.close()

    def cooling():
        shown = live.proxy_status().get("refused_by_device", [])
        return [one["device"] for one in shown if one["cooling_down_s"]]

    asyncio.run(flood())
    wait_for(lambda: cooling() == [device], "the cool-down")
    (shown,) = live.proxy_status()["refused_by_device"]
    assert shown["refused"]["rate"] > 500 and shown["refused"]["cooling_down"] > 0
    named = {"malformed", "unknown_version", "unknown_blob", "forged"}
    assert named <= set(live.proxy_status()["refused"])
    samples = live.metrics("proxy")
    assert found(samples, "devices", state="cooling_down") == 1
    assert found(samples, "refused_total", reason="cooling_down") > 0
    assert not any(one in str(sorted(samples)) for one in live.site.device_ids)
    assert main(["proxy", "devices", "--config", str(live.site.proxy)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "refused, cooling down for " in lines[device]
    assert not any("refused" in lines[other] for other in others)


def test_logs_name_job_and_round_and_nothing_that_is_secret(watched):
    live, done = watched
    hidden = [f"box-{n}" for n in range(1, live.spec.devices + 1)]
    hidden += [word for users in live.site.passwords.values() for word in users.values()]
    hidden += [live.site.token_file.read_text().strip(), *live.site.device_ids]
    every = {round["index"] for round in done["exchanges"]}
    for name in ("cloud", "proxy", "edge"):
        lines = live.lines(name)
        assert len(lines) > 10, name
        assert all({"time", "level", "process", "event", "job", "round"} <= set(o) for o in lines)
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", one["event"]) for one in lines), name
        (job,) = {one["job"] for one in lines if one["job"]}
        assert name != "cloud" or job == done["id"]
        rounds = {one["round"] for one in lines if one["round"]}
        assert rounds and rounds <= every if name == "edge" else rounds == every, name
        text = "\n".join(map(json.dumps, lines))
        assert not [word for word in hidden if word in text], name
        assert not re.search(r"\[[-0-9., ]{24,}\]|[0-9a-fA-F]{33,}", text), name


def test_health_names_the_part_that_fails_and_recovers(watched):
    live, _ = watched

    def both(code, *parts):
        for name, found in zip(("cloud", "proxy"), parts, strict=True):
            wait_for(lambda: live.health(name) == (code, found), f"{code} of {name}")  # noqa: B023

    both(200, [], [])
    before = found(live.metrics("cloud"), "link_connections_total", hop="cloud")
    live.brokers["cloud"].stop()
    both(503, ["broker"], ["cloud_broker"])
    assert found(live.metrics("proxy"), "link_up", hop="cloud") == 0
    assert found(live.metrics("proxy"), "link_up", hop="edge") == 1
    live.brokers["cloud"].start()
    both(200, [], [])
    assert found(live.metrics("cloud"), "link_connections_total", hop="cloud") == before + 1
