"""`edgeveil check` without a file: check this machine, writing only temporary files."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from edgeveil.units import EARLIEST_S, byte_text
from edgeveil_tools.cli.common import answer

_SIGNS = {"ok": "✓", "note": "–", "problem": "✗"}
Found = Iterator[tuple[str, ...]]
"""Level (ok, note or problem), finding, and if not ok its reason and fix."""

USES = {
    "client": ("control a cloud's jobs", ("rich", "shtab")),
    "tools": ("run whole jobs here", ("torch", "onnx", "sklearn", "amqtt", "matplotlib")),
    "lab": ("load tests and audits", ("edgeveil_lab",)),
    "cloud": ("a cloud", ("torch", "onnx", "sqlalchemy", "dp_accounting")),
    "postgres": ("a cloud's store in PostgreSQL", ("psycopg",)),
    "proxy": ("a proxy", ("prometheus_client",)),
    "blobs": ("large models in an object store", ("obstore",)),
    "infer": ("a device that infers", ("onnxruntime", "psutil")),
    "train-fm": ("a device that trains with fm", ("onnxruntime", "psutil")),
    "train": ("a device that trains networks", ("torch", "onnxruntime", "psutil")),
    "parquet": ("records in Parquet files", ("pyarrow",)),
    "images": ("records in pictures", ("PIL",)),
    "audio": ("records in sound files", ("soundfile",)),
    "frames": ("DataFrames as records", ("pandas", "polars", "pyarrow")),
    "hub": ("data sets and models of Hugging Face", ("datasets", "huggingface_hub")),
    "track": ("runs logged to MLflow and others", ("mlflow", "tensorboard", "wandb")),
    "ray": ("simulations on a Ray cluster", ("ray",)),
}
"""Purpose of each extra, and the modules that show whether it is installed."""
_LIBRARIES = ("numpy", "torch", "onnxruntime", "cryptography")
_LEAST_DISK_BYTES = 1 << 30
_USUAL_MEMORY_BYTES = 1 << 30  # the quickstart's processes take 660 MiB
_USUAL_FILES = 1024
_SITE_PORTS = {21883: "edge broker", 21884: "cloud broker", 8701: "cloud", 8702: "proxy"}


def command(args: argparse.Namespace) -> int:
    parts = {"versions": _versions, "uses": _uses, "processor": _torch, "broker": _broker}
    parts |= {"room": _room, "network": _ports, "clock": _clock}
    lines, findings = list[str](), list[dict[str, str]]()
    for area, part in parts.items():
        lines.append(area)
        for found in part():
            level, what, why, fix = (*found, "", "")[:4]
            findings.append({"area": area, "level": level, "what": what, "why": why, "fix": fix})
            lines.append(f"  {_SIGNS[level]} {what}" + (f": {why}" if why else ""))
            lines += [f"      {fix}"] if fix else []
    counts = Counter(one["level"] for one in findings)
    totals = [f"{counts[one]} {one}{'s' * (counts[one] > 1)}" for one in ("problem", "note")]
    worse = " and ".join(one for one in totals if one[0] != "0") or "no problems"
    lines += ["", f"{worse}; ✓ ok, – needed for some uses only, ✗ problem"]
    return answer(args, lines, {"findings": findings}, ok=not counts["problem"])


def _versions() -> Found:
    python = f"Python {platform.python_version()} at {sys.executable}"
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    for what in (f"edgeveil {metadata.version('edgeveil')}, {python}", system):
        yield "ok", what
    for name in _LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            yield "ok", f"{name} {metadata.version(name)}"


def _uses() -> Found:
    for extra, (purpose, modules) in USES.items():
        missing = [name for name in modules if find_spec(name) is None]
        if not missing:
            yield "ok", f"{extra}: {purpose}"
            continue
        package = "edgeveil-lab" if extra == "lab" else f"'edgeveil[{extra}]'"
        why, fix = f"{', '.join(missing)} not installed", f"pip install {package}"
        yield "note", f"no {extra}, {purpose}", why, fix


def _torch() -> Found:
    if find_spec("torch") is None:
        yield "note", "only `fm` can train, without torch", "torch is not installed"
        return
    try:
        torch = importlib.import_module("torch")
        cards = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    except Exception as error:  # a build for another machine fails in many ways
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        fix = "install torch again; without a GPU its CPU build"
        yield "problem", "torch cannot be loaded", why, fix
        return
    gpu = ", ".join(cards) or "no GPU"
    yield "ok", f"torch {torch.__version__}, {os.cpu_count()} processors, {gpu}"


def _broker() -> Found:
    found = shutil.which("mosquitto")
    if found is not None:
        with suppress(OSError, subprocess.SubprocessError):
            shown = subprocess.run([found, "-h"], capture_output=True, text=True, timeout=10)
            found += f", {shown.stdout.partition(chr(10))[0].strip()}"
        yield "ok", f"mosquitto: {found}"
        return
    what, why = "no MQTT broker", "runs and sites here need one"
    if find_spec("amqtt") is not None:
        what = "mosquitto is not on the PATH"
        why = "runs use the embedded amqtt, which is slower and supports only MQTT 3.1.1"
    fix = "apt-get install mosquitto; it may lie in /usr/sbin, outside the PATH"
    yield "note", what, why, fix


def _room() -> Found:
    if find_spec("psutil") is not None:
        free = importlib.import_module("psutil").virtual_memory().available
        less = free < _USUAL_MEMORY_BYTES
        why = f"the quickstart needs about {byte_text(_USUAL_MEMORY_BYTES)}"
        more = (why, "use fewer devices (--devices 6)") if less else ()
        yield "note" if less else "ok", f"{byte_text(free)} of memory are free", *more
    for folder in dict.fromkeys((Path.cwd(), Path(tempfile.gettempdir()))):
        try:
            with tempfile.NamedTemporaryFile(dir=folder):
                free = shutil.disk_usage(folder).free
        except OSError as error:
            fix = "work in another folder, or set TMPDIR to one that you may write to"
            yield "problem", f"{folder} cannot be written", error.strerror or str(error), fix
            continue
        why = "stores, spools and logs of a run may fill it"
        full = why, "free some space, or use another disk"
        less = free < _LEAST_DISK_BYTES
        room = f"{folder}: {byte_text(free)} free, may be written"
        yield "problem" if less else "ok", room, *(full if less else ())
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if resource.RLIM_INFINITY != soft < _USUAL_FILES:
        why, fix = "each connection of a broker is one", "raise it with ulimit -n"
        yield "note", f"{soft:,} open files a process", why, fix


def _ports() -> Found:
    taken = []
    for port, who in _SITE_PORTS.items():
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as error:
            taken.append(f"{port} ({who}): {error.strerror}")
    if taken:
        why = "`site init --local` uses these ports; `edgeveil run` uses any free ports"
        fix = "stop the programs that use them, or set other ports in its fleet.yaml"
        yield "note", f"ports in use: {', '.join(taken)}", why, fix
    else:
        yield "ok", f"ports {', '.join(map(str, _SITE_PORTS))} are free"


def _clock() -> Found:
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    if time.time() < EARLIEST_S:
        why = "signatures, certificates and releases depend on it"
        yield "problem", f"the clock shows {now}", why, "set the clock, for example by NTP"
    else:
        yield "ok", now
