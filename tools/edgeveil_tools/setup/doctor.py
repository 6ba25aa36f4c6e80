"""`edgeveil check` without a file: what this machine has and lacks for each use.

Starts nothing, and writes nothing but an empty file in the folder for temporary ones.
"""

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
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from edgeveil.units import EARLIEST_S, byte_text
from edgeveil_tools.cli.common import answer


class MachineFinding(NamedTuple):
    """One thing that was looked at; `level` is ok, note or problem."""

    area: str
    level: str
    what: str
    why: str = ""
    fix: str = ""


USES = {
    "client": ("steer a cloud's jobs", ("rich", "shtab")),
    "tools": ("run whole jobs here", ("torch", "onnx", "sklearn", "amqtt", "matplotlib")),
    "lab": ("load tests and audits", ("edgeveil_lab",)),
    "cloud": ("a cloud", ("torch", "onnx", "sqlalchemy", "dp_accounting")),
    "postgres": ("a cloud's store in PostgreSQL", ("psycopg",)),
    "proxy": ("a proxy", ("prometheus_client",)),
    "blobs": ("large models beside the brokers", ("obstore",)),
    "infer": ("a device that infers", ("onnxruntime", "psutil")),
    "train-fm": ("a device that trains with fm", ("onnxruntime", "psutil")),
    "train": ("a device that trains networks", ("torch", "onnxruntime", "psutil")),
    "parquet": ("records in Parquet files", ("pyarrow",)),
    "images": ("records in pictures", ("PIL",)),
    "track": ("runs logged to MLflow and others", ("mlflow", "tensorboard", "wandb")),
    "ray": ("simulations on a Ray cluster", ("ray",)),
}
"""What each extra is for, and the modules that tell whether it is installed."""
_LIBRARIES = ("numpy", "torch", "onnxruntime", "cryptography")
_LEAST_DISK_BYTES = 1 << 30
_USUAL_MEMORY_BYTES = 1 << 30  # the quickstart's processes take 660 MiB
_USUAL_FILES = 1024
_SITE_PORTS = {21883: "edge broker", 21884: "cloud broker", 8701: "cloud", 8702: "proxy"}


def command(args: argparse.Namespace) -> int:
    """Print the findings; exit code 1 where there is a problem."""
    parts: tuple[Callable[[], Iterable[MachineFinding]], ...]
    parts = (_versions, _uses, _torch, _broker, _room, _ports, _clock)
    found = [one for part in parts for one in part()]
    sound = not any(one.level == "problem" for one in found)
    return answer(args, lines(found), {"findings": [one._asdict() for one in found]}, ok=sound)


def lines(findings: Iterable[MachineFinding]) -> Iterator[str]:
    signs = {"ok": "✓", "note": "–", "problem": "✗"}
    counts = {"problem": 0, "note": 0}
    for area, group in groupby(findings, key=lambda one: one.area):
        yield area
        for one in group:
            yield f"  {signs[one.level]} {one.what}" + (f": {one.why}" if one.why else "")
            if one.fix:
                yield f"      {one.fix}"
            if one.level != "ok":
                counts[one.level] += 1
    said = [f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items() if count]
    yield ""
    yield f"{' and '.join(said) or 'all is well'}; ✓ ok, – only some uses need it, ✗ a problem"


def _versions() -> Iterator[MachineFinding]:
    python = f"Python {platform.python_version()} at {sys.executable}"
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    for what in (f"edgeveil {metadata.version('edgeveil')}, {python}", system):
        yield MachineFinding("versions", "ok", what)
    for name in _LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            yield MachineFinding("versions", "ok", f"{name} {metadata.version(name)}")


def _uses() -> Iterator[MachineFinding]:
    for extra, (purpose, modules) in USES.items():
        missing = [name for name in modules if find_spec(name) is None]
        if not missing:
            yield MachineFinding("uses", "ok", f"{extra}: {purpose}")
            continue
        package = "edgeveil-lab" if extra == "lab" else f"'edgeveil[{extra}]'"
        why, fix = f"{', '.join(missing)} not installed", f"pip install {package}"
        yield MachineFinding("uses", "note", f"no {extra}, {purpose}", why, fix)


def _torch() -> Iterator[MachineFinding]:
    if find_spec("torch") is None:
        what = "trains with `fm` alone, whose arithmetic needs no torch"
        yield MachineFinding("processor", "note", what, "torch is not installed")
        return
    try:
        torch = importlib.import_module("torch")
        cards = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    except Exception as error:  # a library of another machine's fails in many ways
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        fix = "install torch again; a CPU build where there is no GPU"
        yield MachineFinding("processor", "problem", "torch cannot be loaded", why, fix)
        return
    gpu = ", ".join(cards) or "no GPU"
    what = f"torch {torch.__version__}, {os.cpu_count()} processors, {gpu}"
    yield MachineFinding("processor", "ok", what)


def _broker() -> Iterator[MachineFinding]:
    found = shutil.which("mosquitto")
    if found is not None:
        with suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run([found, "-h"], capture_output=True, text=True, timeout=10)
            found += f", {said.stdout.partition(chr(10))[0].strip()}"
        yield MachineFinding("broker", "ok", f"mosquitto: {found}")
        return
    what, why = "no MQTT broker", "runs and sites here need one"
    if find_spec("amqtt") is not None:
        what = "mosquitto is not on the PATH"
        why = "runs take the embedded amqtt, which carries less and speaks MQTT 3.1.1 alone"
    fix = "apt-get install mosquitto; it may lie in /usr/sbin, outside the PATH"
    yield MachineFinding("broker", "note", what, why, fix)


def _room() -> Iterator[MachineFinding]:
    if find_spec("psutil") is not None:
        free = importlib.import_module("psutil").virtual_memory().available
        said, why = f"{byte_text(free)} of memory are free", ""
        if free < _USUAL_MEMORY_BYTES:
            why = f"the quickstart takes some {byte_text(_USUAL_MEMORY_BYTES)}"
        fix = "use fewer devices (--devices 6)" if why else ""
        yield MachineFinding("room", "note" if why else "ok", said, why, fix)
    for folder in dict.fromkeys((Path.cwd(), Path(tempfile.gettempdir()))):
        why = fix = ""
        try:
            with tempfile.NamedTemporaryFile(dir=folder):
                free = shutil.disk_usage(folder).free
            said = f"{folder}: {byte_text(free)} free, may be written"
            if free < _LEAST_DISK_BYTES:
                why = "stores, spools and logs of a run may fill it"
                fix = "make room, or work on another disk (--out, TMPDIR)"
        except OSError as error:
            said, why = f"{folder} cannot be written", error.strerror or str(error)
            fix = "work in another folder, or set TMPDIR to one that you may write to"
        yield MachineFinding("room", "problem" if why else "ok", said, why, fix)
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if resource.RLIM_INFINITY != soft < _USUAL_FILES:
        why, fix = "each connection of a broker is one", "raise it with ulimit -n"
        yield MachineFinding("room", "note", f"{soft:,} open files a process", why, fix)


def _ports() -> Iterator[MachineFinding]:
    taken = []
    for port, who in _SITE_PORTS.items():
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as error:
            taken.append(f"{port} ({who}): {error.strerror}")
    if taken:
        why = "`site init --local` gives these to a site; `edgeveil run` takes any free ones"
        fix = "end what has them, or write other ports into its fleet.yaml"
        yield MachineFinding("network", "note", f"ports in use: {', '.join(taken)}", why, fix)
    else:
        yield MachineFinding("network", "ok", f"ports {', '.join(map(str, _SITE_PORTS))} are free")


def _clock() -> Iterator[MachineFinding]:
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    if time.time() < EARLIEST_S:
        why = "signatures, certificates and releases are judged by it"
        yield MachineFinding("clock", "problem", f"it says {now}", why, "set it, as by NTP")
    else:
        yield MachineFinding("clock", "ok", now)
