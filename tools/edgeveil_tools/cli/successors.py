"""Commands and options of earlier versions, each with its successor, all in one table."""

from __future__ import annotations

from collections.abc import Sequence

_CLOUD_FILES = {
    f"{command} --{name}-file": f"the environment variable EDGEVEIL_{name.upper()}_FILE"
    for command in ("job", "releases")
    for name in ("ca", "cert", "key")
}
SUCCESSORS = {
    "validate --data": "edgeveil check JOB RECORDS",
    "validate": "edgeveil check FILE",
    "data check": "edgeveil check EDGE.yaml [JOB]",
    "data describe": "edgeveil check RECORDS, or edgeveil init --from RECORDS",
    "edge check": "edgeveil check EDGE.yaml [JOB]",
    "site plan": "edgeveil site apply DIR --dry-run",
    "site move": "the device's cell in fleet.yaml (devices.list, the table), then site apply DIR",
    "trust init --edge-authority": "ca_file of the parties' broker links",
    "trust init --cloud-authority": "ca_file of the parties' broker links",
    "trust revoke": "edgeveil trust rotate DIR ROLE none",
    "site check": "edgeveil check FOLDER",
    "init loadtest": "edgeveil loadtest --scenario FILE; configs/load has some",
    "init sensors": "edgeveil init classification, or anomaly for windows of a sensor",
    "doctor --config": "edgeveil check FILE",
    "plan": "edgeveil check JOB --estimate",
    "backbone show": "edgeveil check FILE",
    "backbone --input-shape": "torch.onnx.export, as docs/models.md has it, and check",
    "backbone train": "edgeveil backbone digits",
    "backbone export": "torch.onnx.export, as docs/models.md has it, and check",
    "table": "edgeveil run JOB --simulate --seeds 3 --sweep KEY=A,B",
    "compare": "edgeveil run JOB --simulate --sweep privacy.noise=local,shared",
    "run --engine": "edgeveil run JOB --simulate, on a Ray cluster with --ray HOST:PORT",
    "run --protocol": "broker.protocol of a site's files; a run speaks MQTT 5, with amqtt 3.1.1",
    "run --address": "edgeveil run JOB --simulate --ray HOST:PORT",
    "chaos": "make chaos, in the repository",
    "job track": "edgeveil job show ID --watch --track WHERE",
    "cloud --track": "edgeveil job show ID --watch --track WHERE, beside the cloud",
    "job watch": "edgeveil job show ID --watch",
    "job list": "edgeveil job show",
    "releases list": "edgeveil job show",
    "releases show": "edgeveil job show ID",
    "releases promote": "edgeveil job release ID promote",
    "releases withdraw": "edgeveil job release ID withdraw",
    "job promote": "edgeveil job release ID promote",
    "job withdraw": "edgeveil job release ID withdraw",
    "doctor": "edgeveil check",
    "schema": "edgeveil check --schema KIND",
    "completion": "edgeveil --completion SHELL",
    "serve": "edgeveil edge --config EDGE.yaml, with `inference:` in it, or any ONNX runtime",
    "run --resume": "edgeveil run JOB --force; a grid (--seeds) keeps the runs that are done",
    "run --page": "edgeveil run JOB; the page of a run is DIR/report.html",
    "run --open": "edgeveil run JOB; the page of a run is DIR/report.html",
    "run --no-page": "edgeveil run JOB, without it",
    "job --insecure-http": "the environment variable EDGEVEIL_INSECURE_HTTP=1",
    **_CLOUD_FILES,
    "cloud token": "edgeveil keys --config CLOUD.yaml --token SCOPE [--next]",
    "cloud keys": "edgeveil keys --config CLOUD.yaml [--next]",
    "proxy keys": "edgeveil keys --config PROXY.yaml [--next]",
    "edge enrol": "edgeveil keys --config EDGE.yaml [--out FILE]",
    "edge rekey": "edgeveil keys --config EDGE.yaml --next",
    "edge resume": "edgeveil edge pause --config EDGE.yaml --end",
    "edge page": "edgeveil edge status --config EDGE.yaml --page",
    "cloud accept-registry": "edgeveil cloud --config CLOUD.yaml --accept-registry",
    "cloud log": "edgeveil log CLOUD.yaml",
    "proxy log": "edgeveil log PROXY.yaml",
    "site log": "edgeveil log DIR",
    "trust log": "edgeveil log DIR",
    "proxy lineage": "edgeveil proxy devices --config PROXY.yaml",
    "proxy claims add": "edgeveil proxy admit --config PROXY.yaml --claim NAME",
    "proxy claims list": "edgeveil proxy devices --config PROXY.yaml",
    "proxy claims admit": "edgeveil proxy admit --config PROXY.yaml NAME",
    "proxy claims withdraw": "edgeveil proxy revoke --config PROXY.yaml NAME",
    "trust cell": "cells in a fleet's plan, then edgeveil site apply DIR",
    "trust init --cell": "cells in a fleet's plan, then edgeveil site apply DIR",
    "trust renew": "edgeveil trust sign DIR --renew",
    "trust recover": "edgeveil trust rotate DIR registry LINEAGE, or root --without FINGERPRINT",
    "ledger show": "edgeveil ledger EDGE.yaml",
    "ledger verify": "edgeveil ledger EDGE.yaml, which checks every link",
    "provision": "edgeveil site init --local DIR, then edgeveil site apply DIR",
    **{
        f"loadtest --{option}": "edgeveil loadtest --processes N, on one machine"
        for option in ("listen", "remote", "join", "join-token")
    },
    "loadtest --ramp": "edgeveil loadtest --rate N, connections a second",
    "reproduce --write": "reproduction.md and reproduction.png in the folder of --out",
    "loadtest --slow": "a slow interface: tc qdisc add dev IF root netem rate 128kbit",
    "loadtest --kill-cell": "make chaos, in the repository",
    "loadtest --prometheus": "edgeveil loadtest --out DIR, the series in load.json",
    "loadtest --cloud-broker": "edgeveil site init --local, its broker's address, loadtest --site",
    "run --cells": "edgeveil site init DIR --cells north,south, then edgeveil site apply DIR",
    "version": "edgeveil --version",
}


def successor(words: Sequence[str]) -> tuple[str, str] | None:
    """The old name that a command line begins with or has, and its successor."""
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    for old, new in SUCCESSORS.items():
        path = [word for word in old.split() if word[0] != "-"]
        if list(words[: len(path)]) == path and options >= {*old.split()[len(path) :]}:
            return old, new
    return None
