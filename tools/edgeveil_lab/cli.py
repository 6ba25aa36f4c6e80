"""The laboratory's commands, added to `edgeveil` by the entry point group `edgeveil.commands`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from edgeveil_tools.cli.common import Subparsers, add_row, arg, row

CAPACITY = {"selected": 100, "rounds": 2, "upload_bytes": 65536, "package_bytes": 65536}


def reproduce(args: argparse.Namespace) -> int:
    from edgeveil_lab.reproduce import run

    if args.name is None:
        about = {name: run.load_experiment(name).about for name in run.experiments()}
        listed = {name: {key: a[key] for key in ("title", "source")} for name, a in about.items()}
        lines = [f"{name:<18} {f['source']}: {f['title']}" for name, f in listed.items()]
        print(json.dumps(listed, ensure_ascii=False) if args.json else "\n".join(lines))
        return 0
    names = ("data", "quick", "only", "rounds", "ray", "json")
    given = {name: getattr(args, name) for name in names}
    out = args.out or Path("out/reproduce") / (args.name + "-quick" * args.quick)
    seeds = args.seeds if args.seeds is not None else (1 if args.quick else 3)
    return run.reproduce(args.name, run.ReproductionOptions(out, seeds, **given))


def loadtest(args: argparse.Namespace) -> int:
    from edgeveil_lab.load.scenario import chosen, resolve

    options = resolve(args.scenario, chosen(args))
    if args.make_fleet is not None:
        from edgeveil_lab.load.sites import write_fleet

        write_fleet(args.make_fleet, options.devices)
        print(f"wrote {args.make_fleet}, {args.make_fleet}.enrolments, {args.make_fleet}.users")
        return 0
    from edgeveil_lab.load.command import run

    return run(options, as_json=args.json)


def _load_options(parser: argparse.ArgumentParser) -> None:
    from edgeveil_lab.load.scenario import add_arguments

    add_arguments(parser)


def capacity(args: argparse.Namespace) -> int:
    from edgeveil_lab.capacity import command

    options = {name: getattr(args, name) for name in CAPACITY}
    return command.capacity(args.devices, args.out, **options, as_json=args.json)


def _sizes(text: str) -> tuple[int, ...]:
    found = tuple(sorted({int(one) for one in text.split(",")}))
    if found[0] < 1:
        raise ValueError
    return found


def attack(args: argparse.Namespace) -> int:
    from edgeveil_lab.attack import command

    return command.attack(args.recording, args.out, as_json=args.json)


def audit(args: argparse.Namespace) -> int:
    from edgeveil_lab.audit import command

    return command.audit(
        quick=args.quick, as_json=args.json, runs=args.runs, mechanism=args.mechanism
    )


COMMANDS = (
    row(
        "reproduce",
        "run a paper's experiment and compare its figures with ours",
        reproduce,
        arg("name NAME", "an experiment; default: list them", nargs="?"),
        arg("--data DIR", "folder of the data set's files, or of such folders", Path),
        arg("--seeds N", "runs of each row; 3, or 1 if quick", int),
        arg("--rounds N", "play at most N rounds of each row", int),
        arg("--ray HOST:PORT", "simulate on a Ray cluster; `local` starts one on this machine"),
        arg("--quick", "few rounds on digits, a few minutes"),
        arg("--only ROW", "run only these rows", nargs="+", default=()),
        arg("--out DIR", "default out/reproduce/NAME", Path),
        about="""Simulates the rows of a paper's table or figure and writes reproduction.md, .json,
        .png and .svg to DIR: the paper's figure, ours, privacy as claimed and as proven,
        seconds. Completed runs are kept: the same command continues. Without NAME: lists
        the experiments. Rows whose data set is missing are left out.
        edgeveil reproduce laplace-inference
        edgeveil reproduce delm-table3 --data DIR --seeds 1 --only fm_1_class fm_2_class""",
    ),
    row(
        "loadtest",
        "measure a site's capacity with simulated devices",
        loadtest,
        arg("--scenario FILE", "YAML file of these options", Path),
        arg("--make-fleet FILE", "only write the keys of --devices devices", Path),
        about="""Plays thousands of devices, with the real protocol and real encryption, and
        measures connections, uploads, latency, loss, and the use of each process. Without
        --broker or --site it starts two brokers, a cloud and a proxy of its own on this machine,
        with --cells N an edge broker and a proxy for each cell. The job uploads noise: no
        record is read.
        edgeveil loadtest --devices 500 --rounds 5 --out out/load
        edgeveil loadtest --scenario configs/load/storm.yaml
        edgeveil loadtest --site my-site --devices 200""",
    ),
    row(
        "capacity",
        "simulate a fleet of any size and report each party's load",
        capacity,
        arg("--devices N[,N…]", "default 10000", _sizes, default=(10_000,)),
        *(
            arg(f"--{key.replace('_', '-')} N", f"default {default}", int, default=default)
            for key, default in CAPACITY.items()
        ),
        arg("--out DIR", "default out/capacity", Path, default=Path("out/capacity")),
        about="""Simulates a fleet in virtual time: cloud, proxy, stores and selected devices
        run the real code, all other devices only receive. There is no broker and no
        encryption. Reports the busiest party of each phase.
        edgeveil capacity --devices 1000,10000,100000 --out out/capacity""",
    ),
    row(
        "audit",
        "attack every privacy mechanism",
        audit,
        arg("--quick", "fewer runs, a few minutes"),
        arg("--runs N", "runs per side; fewer for the slowest attacks", int),
        arg("--mechanism NAME", "attack only this mechanism", default=""),
        about="""Attacks each mechanism and compares its claimed ε with the lower bound on ε that
        its outputs prove. Exit code 1 if a proven claim fails (false alarm: probability 1e-6).
        `finds ε ≥`: smallest true ε that the attack finds with probability 0.99.
        edgeveil audit --quick
        edgeveil audit --mechanism fm --runs 200000 --json""",
    ),
    row(
        "attack",
        "attack a recorded job",
        attack,
        arg("recording RECORDING", "folder of a recording", Path),
        arg("--out DIR", "default: RECORDING/attack", Path),
        about="""Attacks the recording of `edgeveil run --record`: reconstructs records from uploads
        (DLG, iDLG, cosine similarity) and infers membership, with the recorded noise and
        without. Writes pictures and attack.json to DIR.
        edgeveil run configs/jobs/attack_demo.yaml --record --out out/attack
        edgeveil attack out/attack/recording""",
    ),
)


def add(commands: Subparsers) -> None:
    for one in COMMANDS:
        made = add_row(commands, one)
        if one.path == "loadtest":
            made.later = _load_options
