"""Compare the models of the shipped jobs, simulated from a fixed seed, with the recorded ones.

    python -m tests.acceptance.golden_jobs [--only NAME] [--write] [--mnist DIR]

Each job of `configs/jobs` is simulated once. The SHA-256 of its final weights, the printed ε and
the accuracy are compared with `golden_jobs.json`. Floating-point products differ in their last
bits between processors: on another processor than the recorded one the norm of every tensor is
compared to 1 part in 10⁴ instead, and the output says so. Jobs of data not embedded (MNIST,
CIFAR-10, Adult) run where EDGEVEIL_MNIST, EDGEVEIL_CIFAR or EDGEVEIL_ADULT names a folder with
its files, for three rounds; others are skipped by name.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets
import yaml
from safetensors.numpy import load, load_file

from edgeveil_tools.local.job import Overrides
from tests.kits.fleet import played_by_all_parties
from tests.kits.guides import blocks

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "configs" / "jobs"
GOLDEN = Path(__file__).with_suffix(".json")
FOLDERS = {"mnist": "EDGEVEIL_MNIST", "cifar10": "EDGEVEIL_CIFAR", "adult": "EDGEVEIL_ADULT"}
TUTORIALS = {
    "messages": ("text", "messages.csv"),
    "messages_tokens": ("text", "messages.csv"),
    "spoken_digits": ("sound", "sounds"),
    "machine_windows": ("windows", "machines.csv"),
    "visits_person": ("persons", "visits.csv"),
}
"""Page of the tutorial that makes a job's data, and where."""
ROUNDS_OF_LARGE_DATA = 3
SEED = "7"
FIGURES = ("epsilon", "inference_epsilon", "accuracy", "r2")
NORMS_AGREE = 1e-4


def processor() -> str:
    """Return the processor's model and torch's version, on which floating-point results depend."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), "")
    return f"{model or platform.processor()}, torch {torch.__version__}"


def prepared(path: Path, scratch: Path) -> tuple[Path, list[str]] | str:
    """Return the job to run and its data's options, or why it cannot run here."""
    job = yaml.safe_load(path.read_text("utf-8"))
    source = job["data"].get("source", "digits")
    if path.stem == "breast_cancer":
        return path, ["--data", str(Path(sklearn.datasets.__path__[0], "data/breast_cancer.csv"))]
    if path.stem in TUTORIALS:
        page, data = TUTORIALS[path.stem]
        (made,) = blocks(f"docs/walkthroughs/{page}.md", "python data")
        subprocess.run([sys.executable, "-c", made], cwd=scratch, check=True)
        return path, ["--data", str(scratch / data)]
    if path.stem in ("census", "census_watched"):
        maker, table = ROOT / "docs" / "examples" / "census.py", str(scratch / "census.csv")
        subprocess.run([sys.executable, str(maker), table], check=True)
        return path, ["--data", table]
    table = {"own_data": "digits.csv"}.get(path.stem) or job.get("local_run", {}).get(
        "data", {}
    ).get("path")
    if table and source not in FOLDERS:
        command = shlex.split(
            next(filter(None, (_maker(one, table) for one in JOBS.glob("*.yaml"))))
        )
        subprocess.run([sys.executable, *command[1:3]], cwd=scratch, check=True)
        return path, ["--data", str(scratch / table)]
    if path.stem == "pictures":
        return path, ["--data", str(_pictures(scratch / "pictures"))]
    if path.stem == "colour_scenes":
        folder = str(scratch / "scenes.npz")
        maker = ROOT / "docs" / "examples" / "colour_scenes.py"
        subprocess.run([sys.executable, str(maker), folder, "1000"], check=True)
    elif source not in FOLDERS:
        return path, []
    elif not (folder := os.environ.get(FOLDERS[source], "")):
        return f"{FOLDERS[source]} names no folder with its data"
    if "preset" not in job and job["train"].get("rounds", 0) > ROUNDS_OF_LARGE_DATA:
        job["train"]["rounds"] = ROUNDS_OF_LARGE_DATA
        job.get("privacy", {}).pop("max_participations", None)
    for block in job.get("features", ()):
        for key in ("path", "backbone"):
            if isinstance(block.get(key), str):
                block[key] = str((JOBS / block[key]).resolve())
    short = scratch / path.name
    short.write_text(yaml.safe_dump(job), "utf-8")
    return short, ["--data", folder]


def _maker(path: Path, table: str) -> str:
    """Return the command in a job file's comment that writes `table`."""
    comment = re.match(r"(#.*\n)*", path.read_text("utf-8"))
    assert comment is not None
    text = re.sub(r"\n#\s*", " ", comment[0])
    found = re.search(rf"python -c \"[^\"]*'{re.escape(table)}'[^\"]*\"", text)
    return found[0] if found else ""


def _pictures(folder: Path) -> Path:
    from PIL import Image

    noise = np.random.default_rng(5)
    for name, level in (("cat", 90), ("dog", 160)):
        (folder / name).mkdir(parents=True)
        for number in range(320):
            pixels = np.clip(noise.normal(level, 40, (32, 32, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:04}.png")
    return folder


def simulated(path: Path, options: list[str], out: Path) -> dict[str, Any]:
    """Simulate one job and return the digest, the norms and the figures of its result.

    Buffered rounds, for which a simulation has no late devices, are played by all parties.
    """
    if yaml.safe_load(path.read_text("utf-8")).get("round", {}).get("mode") == "buffered":
        return _buffered(path, out)
    command = [sys.executable, "-m", "edgeveil_tools.cli", "run", str(path), "--simulate"]
    command += [
        "--seed",
        SEED,
        "--no-reference",
        "--out",
        str(out),
        "--json",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.returncode, "why": done.stderr.strip().splitlines()[-1:]}
    result = json.loads((out / "result.json").read_text("utf-8"))
    model = out / "model.safetensors"  # of a job that learns one
    weights = load_file(model) if model.is_file() else {}
    return {**_weights(weights), "figures": _figures(result)}


def _weights(weights: dict[str, np.ndarray]) -> dict[str, Any]:
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].tobytes())
    norms = {
        name: float(f"{np.linalg.norm(value.astype(float)):.9g}") for name, value in weights.items()
    }
    return {"weights": digest.hexdigest(), "norms": norms}


def _buffered(path: Path, out: Path) -> dict[str, Any]:
    status, _, safetensors, events, _ = played_by_all_parties(path, out, Overrides(seed=int(SEED)))
    if status != "completed":
        return {"failed": 6, "why": [status]}
    end = next(one["data"] for one in reversed(events) if one["type"] == "job_completed")
    told = {"privacy": end["privacy"], "final": end["final"]}
    return {**_weights(load(safetensors)), "figures": _figures(told)}


def _figures(result: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def look(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                look(inner, f"{path}.{key}" if path else key)
        elif path.rsplit(".", 1)[-1] in FIGURES and isinstance(value, int | float | str):
            found[path] = value

    look(result, "")
    return found


def differs(found: dict[str, Any], kept: dict[str, Any], same_processor: bool) -> str:
    """Return how a result differs from the recorded one; "" if equal."""
    if "failed" in found or "failed" in kept:
        return "" if found.get("failed") == kept.get("failed") else str(found)
    if found["figures"] != kept["figures"] and same_processor:
        changed = {
            k
            for k in found["figures"].keys() | kept["figures"]
            if found["figures"].get(k) != kept["figures"].get(k)
        }
        return "figures: " + ", ".join(
            f"{k} {kept['figures'].get(k)} -> {found['figures'].get(k)}" for k in sorted(changed)
        )
    if found["weights"] == kept["weights"]:
        return ""
    if same_processor:
        return "other weights"
    near = found["norms"].keys() == kept["norms"].keys() and all(
        np.isclose(found["norms"][name], norm, rtol=NORMS_AGREE, atol=NORMS_AGREE)
        for name, norm in kept["norms"].items()
    )
    return "" if near else "norms of the weights differ"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", help="jobs whose name holds this")
    parser.add_argument("--write", action="store_true", help="record the results")
    args = parser.parse_args()
    kept = (
        json.loads(GOLDEN.read_text("utf-8")) if GOLDEN.exists() else {"processor": "", "jobs": {}}
    )
    same = kept["processor"] == processor()
    if not (same or args.write):
        print(f"recorded on {kept['processor']}, this is {processor()}: norms are compared")
    wrong = 0
    for path in sorted(JOBS.glob("*.yaml")):
        if args.only and args.only not in path.stem:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            ready = prepared(path, Path(scratch))
            if isinstance(ready, str):
                print(f"{path.stem}: skipped, {ready}", flush=True)
                continue
            found = simulated(*ready, Path(scratch) / "out")
        if args.write:
            kept["jobs"][path.stem] = found
            print(f"{path.stem}: {found.get('why') or found['weights'][:16]}", flush=True)
            continue
        change = differs(
            found, kept["jobs"].get(path.stem, {"figures": {}, "weights": "", "norms": {}}), same
        )
        print(f"{path.stem}: {change or 'the same'}", flush=True)
        wrong += bool(change)
    if args.write:
        kept["processor"] = processor()
        GOLDEN.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", "utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
