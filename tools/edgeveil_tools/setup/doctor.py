"""`edgeveil doctor`: what this machine has and lacks for each use. Nothing is started or written
but an empty file in the folder for temporary ones."""

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
from typing import Literal, NamedTuple

from edgeveil.units import EARLIEST_S, byte_text
from edgeveil_tools.cli.common import answer

Level = Literal["ok", "note", "problem"]


class MachineFinding(NamedTuple):
    """One thing that was looked at: what it is like, why that matters, how to mend it."""

    area: str
    level: Level
    what: str
    why: str = ""
    fix: str = ""


class MachineUse(NamedTuple):
    """What one extra is for, and the modules that tell whether it is installed."""

    extra: str
    purpose: str
    modules: tuple[str, ...]


USES = (
    MachineUse("client", "steer a cloud's jobs", ("rich", "shtab")),
    MachineUse("tools", "run whole jobs here", ("torch", "onnx", "sklearn", "amqtt", "matplotlib")),
    MachineUse("lab", "load tests and audits", ("edgeveil_lab",)),
    MachineUse("cloud", "a cloud", ("torch", "onnx", "sqlalchemy", "dp_accounting")),
    MachineUse("postgres", "a cloud's store in PostgreSQL", ("psycopg",)),
    MachineUse("proxy", "a proxy", ("prometheus_client",)),
    MachineUse("blobs", "large models beside the brokers", ("obstore",)),
    MachineUse("infer", "a device that infers", ("onnxruntime", "psutil")),
    MachineUse("train-fm", "a device that trains with fm", ("onnxruntime", "psutil")),
    MachineUse("train", "a device that trains networks", ("torch", "onnxruntime", "psutil")),
    MachineUse("parquet", "records in Parquet files", ("pyarrow",)),
    MachineUse("images", "records in pictures", ("PIL",)),
    MachineUse("track", "runs logged to MLflow and others", ("mlflow", "tensorboard", "wandb")),
    MachineUse("ray", "simulations on a Ray cluster", ("ray",)),
)
_LIBRARIES = ("numpy", "torch", "onnxruntime", "cryptography", "paho-mqtt")
_LEAST_DISK_BYTES = 1 << 30
_USUAL_MEMORY_BYTES = 1 << 30  # the quickstart's processes take 660 MiB
_USUAL_FILES = 1024
_SITE_PORTS = {21883: "edge broker", 21884: "cloud broker", 8701: "cloud", 8702: "proxy"}


def command(args: argparse.Namespace) -> int:
    """`edgeveil doctor`; 1 where there is a problem."""
    found = examine()
    sound = not any(one.level == "problem" for one in found)
    return answer(args, lines(found), {"findings": [one._asdict() for one in found]}, ok=sound)


def examine() -> list[MachineFinding]:
    """All of this machine, in the order that `lines` shows."""
    parts: tuple[Callable[[], Iterable[MachineFinding]], ...] = (
        *(_versions, _uses, _torch, _broker, _memory, _disk, _files, _ports, _clock, _data),
    )
    return [finding for part in parts for finding in part()]


def lines(findings: Iterable[MachineFinding]) -> Iterator[str]:
    """What a person reads: by area, what is well in one line, the rest with why and fix."""
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


# --- what is installed ---


def _versions() -> Iterator[MachineFinding]:
    where = f"Python {platform.python_version()} at {sys.executable}"
    yield MachineFinding("versions", "ok", f"edgeveil {metadata.version('edgeveil')}, {where}")
    yield MachineFinding(
        "versions", "ok", f"{platform.system()} {platform.release()} {platform.machine()}"
    )
    for name in _LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            yield MachineFinding("versions", "ok", f"{name} {metadata.version(name)}")


def _uses() -> Iterator[MachineFinding]:
    for use in USES:
        missing = [name for name in use.modules if find_spec(name) is None]
        if not missing:
            yield MachineFinding("uses", "ok", f"{use.extra}: {use.purpose}")
            continue
        why = f"{', '.join(missing)} not installed"
        fix = f"pip install 'edgeveil[{use.extra}]'"
        if use.extra == "lab":
            fix = "pip install edgeveil-lab"
        yield MachineFinding("uses", "note", f"no {use.extra}, {use.purpose}", why, fix)


def _torch() -> Iterator[MachineFinding]:
    if find_spec("torch") is None:
        what = "trains with `fm` alone, whose arithmetic needs no torch"
        yield MachineFinding("processor", "note", what, "torch is not installed")
        return
    try:
        torch = importlib.import_module("torch")
        built = torch.version.cuda
        cards = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
        apple = torch.backends.mps.is_available()
    except Exception as error:  # a library of another machine's fails in many ways
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        fix = "install torch again; a CPU build where there is no GPU"
        yield MachineFinding("processor", "problem", "torch cannot be loaded", why, fix)
        return
    what = f"torch {torch.__version__}, {os.cpu_count()} processors"
    if cards:
        yield MachineFinding("processor", "ok", f"{what}, CUDA {built} on {', '.join(cards)}")
    elif apple:
        yield MachineFinding("processor", "ok", f"{what}, Apple's GPU")
    elif built:
        fix = "nothing to do without a GPU; with one, look at its driver (nvidia-smi)"
        yield MachineFinding(
            "processor", "note", f"{what}, built for CUDA {built}", "no GPU found", fix
        )
    else:
        yield MachineFinding("processor", "ok", f"{what}, no GPU")


def _broker() -> Iterator[MachineFinding]:
    found = shutil.which("mosquitto")
    if found is not None:
        with suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run([found, "-h"], capture_output=True, text=True, timeout=10)
            found += f", {said.stdout.partition(chr(10))[0].strip()}"
        yield MachineFinding("broker", "ok", f"mosquitto: {found}")
        return
    fix = "apt-get install mosquitto; it may lie in /usr/sbin, outside the PATH"
    if find_spec("amqtt") is None:
        yield MachineFinding(
            "broker", "note", "no MQTT broker", "runs and sites here need one", fix
        )
    else:
        why = "runs take the embedded amqtt, which carries less and speaks MQTT 3.1.1 alone"
        yield MachineFinding("broker", "note", "mosquitto is not on the PATH", why, fix)


# --- what there is room for ---


def _memory() -> Iterator[MachineFinding]:
    if find_spec("psutil") is None:
        return
    free = importlib.import_module("psutil").virtual_memory().available
    said = f"{byte_text(free)} of memory are free"
    if free < _USUAL_MEMORY_BYTES:
        why = f"the quickstart takes some {byte_text(_USUAL_MEMORY_BYTES)}"
        fix = "end other programs, or use fewer devices (--devices 6)"
        yield MachineFinding("room", "note", said, why, fix)
    else:
        yield MachineFinding("room", "ok", said)


def _disk() -> Iterator[MachineFinding]:
    for folder in dict.fromkeys((Path.cwd(), Path(tempfile.gettempdir()))):
        try:
            with tempfile.NamedTemporaryFile(dir=folder):
                free = shutil.disk_usage(folder).free
        except OSError as error:
            fix = "work in another folder, or set TMPDIR to one that you may write to"
            what = f"{folder} cannot be written"
            yield MachineFinding("room", "problem", what, error.strerror or str(error), fix)
            continue
        said = f"{folder}: {byte_text(free)} free, may be written"
        if free < _LEAST_DISK_BYTES:
            fix = "make room, or work on another disk (--out, TMPDIR)"
            why = "stores, spools and logs of a run may fill it"
            yield MachineFinding("room", "problem", said, why, fix)
        else:
            yield MachineFinding("room", "ok", said)


def _files() -> Iterator[MachineFinding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = (
        f"{soft:,} open files a process" if soft != resource.RLIM_INFINITY else "no limit of files"
    )
    if resource.RLIM_INFINITY != soft < _USUAL_FILES:
        most = "more" if hard == resource.RLIM_INFINITY else f"up to {hard:,}"
        why = "each connection is one: brokers and load tests need many"
        yield MachineFinding("room", "note", said, why, f"ulimit -n allows {most}")
    else:
        yield MachineFinding("room", "ok", said)


def _ports() -> Iterator[MachineFinding]:
    taken = []
    for port, who in _SITE_PORTS.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
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


def _data() -> Iterator[MachineFinding]:
    spec = find_spec("sklearn")
    origin = Path(spec.origin or "") if spec else Path()
    if (origin.parent / "datasets" / "data" / "digits.csv.gz").is_file():
        yield MachineFinding("data", "ok", "the quickstart's digits ship with scikit-learn")
    else:
        fix = "pip install 'edgeveil[tools]', or `edgeveil init`, which makes records up"
        yield MachineFinding(
            "data", "note", "no digits for the quickstart", "no scikit-learn here", fix
        )
