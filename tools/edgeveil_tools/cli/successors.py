"""Commands and options of earlier versions, each with its successor."""

from __future__ import annotations

from collections.abc import Sequence

_BEFORE = {  # the present name, and its former ones
    "edgeveil check JOB RECORDS": "validate --data",
    "edgeveil check FILE": "validate, doctor --config, backbone show",
    "edgeveil check EDGE.yaml [JOB]": "data check, edge check",
    "edgeveil check RECORDS, or edgeveil init --from RECORDS": "data describe",
    "edgeveil site apply DIR --dry-run": "site plan",
    "the device's cell in fleet.yaml (devices.list, the table), then site apply DIR": "site move",
    "ca_file of the parties' broker links": (
        "trust init --edge-authority, trust init --cloud-authority"
    ),
    "edgeveil trust rotate DIR ROLE none": "trust revoke",
    "edgeveil check FOLDER": "site check",
    "edgeveil loadtest --scenario FILE; configs/load has some": "init loadtest",
    "edgeveil init classification, or anomaly for windows of a sensor": "init sensors",
    "edgeveil check JOB --estimate": "plan",
    "torch.onnx.export, as docs/models.md has it, and check": (
        "backbone --input-shape, backbone export"
    ),
    "edgeveil backbone digits": "backbone train",
    "edgeveil run JOB --simulate --seeds 3 --sweep KEY=A,B": "table",
    "edgeveil run JOB --simulate --sweep privacy.noise=local,shared": "compare",
    "edgeveil run JOB --simulate, on a Ray cluster with --ray HOST:PORT": "run --engine",
    "broker.protocol of a site's files; a run speaks MQTT 5, with amqtt 3.1.1": "run --protocol",
    "edgeveil run JOB --simulate --ray HOST:PORT": "run --address",
    "make chaos, in the repository": "chaos, loadtest --kill-cell",
    "edgeveil job show ID --watch --track WHERE": "job track",
    "edgeveil job show ID --watch --track WHERE, beside the cloud": "cloud --track",
    "edgeveil job show ID --watch": "job watch",
    "edgeveil job show": "job list, releases list",
    "edgeveil job show ID": "releases show",
    "edgeveil job release ID promote": "releases promote, job promote",
    "edgeveil job release ID withdraw": "releases withdraw, job withdraw",
    "edgeveil check": "doctor",
    "edgeveil check --schema KIND": "schema",
    "edgeveil --completion SHELL": "completion",
    "edgeveil edge --config EDGE.yaml, with `inference:` in it, or any ONNX runtime": "serve",
    "edgeveil run JOB --force; a grid (--seeds) keeps the runs that are done": "run --resume",
    "edgeveil run JOB; the page of a run is DIR/report.html": "run --page, run --open",
    "edgeveil run JOB, without it": "run --no-page",
    "the environment variable EDGEVEIL_INSECURE_HTTP=1": "job --insecure-http",
    "the environment variable EDGEVEIL_CA_FILE": "job --ca-file, releases --ca-file",
    "the environment variable EDGEVEIL_CERT_FILE": "job --cert-file, releases --cert-file",
    "the environment variable EDGEVEIL_KEY_FILE": "job --key-file, releases --key-file",
    "edgeveil keys --config CLOUD.yaml --token SCOPE [--next]": "cloud token",
    "edgeveil keys --config CLOUD.yaml [--next]": "cloud keys",
    "edgeveil keys --config PROXY.yaml [--next]": "proxy keys",
    "edgeveil keys --config EDGE.yaml [--out FILE]": "edge enrol",
    "edgeveil keys --config EDGE.yaml --next": "edge rekey",
    "edgeveil edge pause --config EDGE.yaml --end": "edge resume",
    "edgeveil edge status --config EDGE.yaml --page": "edge page",
    "edgeveil cloud --config CLOUD.yaml --accept-registry": "cloud accept-registry",
    "edgeveil log CLOUD.yaml": "cloud log",
    "edgeveil log PROXY.yaml": "proxy log",
    "edgeveil log DIR": "site log, trust log",
    "edgeveil proxy devices --config PROXY.yaml": "proxy lineage, proxy claims list",
    "edgeveil proxy admit --config PROXY.yaml --claim NAME": "proxy claims add",
    "edgeveil proxy admit --config PROXY.yaml NAME": "proxy claims admit",
    "edgeveil proxy revoke --config PROXY.yaml NAME": "proxy claims withdraw",
    "cells in the fleet file, then edgeveil site apply DIR": "trust cell, trust init --cell",
    "edgeveil trust sign DIR --renew": "trust renew",
    "edgeveil trust rotate DIR registry LINEAGE, or root --without FINGERPRINT": "trust recover",
    "edgeveil ledger EDGE.yaml": "ledger show",
    "edgeveil ledger EDGE.yaml, which checks every link": "ledger verify",
    "edgeveil site init --local DIR, then edgeveil site apply DIR": "provision",
    "edgeveil loadtest --processes N, on one machine": (
        "loadtest --listen, loadtest --remote, loadtest --join, loadtest --join-token"
    ),
    "edgeveil loadtest --rate N, connections a second": "loadtest --ramp",
    "reproduction.md and reproduction.png in the folder of --out": "reproduce --write",
    "a slow interface: tc qdisc add dev IF root netem rate 128kbit": "loadtest --slow",
    "edgeveil loadtest --out DIR, the series in load.json": "loadtest --prometheus",
    "edgeveil site init --local, its broker's address, loadtest --site": "loadtest --cloud-broker",
    "edgeveil site init DIR --cells north,south, then edgeveil site apply DIR": "run --cells",
    "edgeveil --version": "version",
}
SUCCESSORS = {old: new for new, olds in _BEFORE.items() for old in olds.split(", ")}
_BY_LENGTH = sorted(SUCCESSORS, key=lambda old: len(old.split()), reverse=True)


def successor(words: Sequence[str]) -> tuple[str, str] | None:
    """Return a retired name that the command line uses, with its successor; None without one."""
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    for old in _BY_LENGTH:
        path = [word for word in old.split() if word[0] != "-"]
        if list(words[: len(path)]) == path and options >= {*old.split()[len(path) :]}:
            return old, SUCCESSORS[old]
    return None
