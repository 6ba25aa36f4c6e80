"""The laboratory's commands, added to `edgeveil` by the entry point group `edgeveil.commands`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from edgeveil_tools.cli.common import Subparsers, command

_LOAD_ABOUT = """\
Plays thousands of devices, with the real protocol and real encryption, and measures connections,
uploads, latency, loss, and the use of each process. Without --broker or --site it starts two
brokers, a cloud and a proxy of its own on this machine, with --cells N an edge broker and a proxy
for each cell. The job uploads noise: no record is read.
"""
_LOAD_EXAMPLES = """\
edgeveil loadtest --devices 500 --rounds 5 --out out/load
edgeveil loadtest --scenario configs/load/storm.yaml
edgeveil loadtest --site my-site --devices 200
"""


CAPACITY = {"selected": 100, "rounds": 2, "upload_bytes": 65536, "package_bytes": 65536}


def add(commands: Subparsers) -> None:
    for one in (_add_reproduce, _add_load, _add_capacity, _add_privacy):
        one(commands)


def _add_reproduce(commands: Subparsers) -> None:
    made = command(
        commands,
        "reproduce",
        "run a paper's experiment and compare its figures with ours",
        about=(
            "Simulates the rows of a paper's table or figure and writes reproduction.md, .json,\n"
            ".png and .svg to DIR: the paper's figure, ours, privacy as claimed and as proven,\n"
            "seconds. Completed runs are kept: the same command continues. Without NAME: lists\n"
            "the experiments. Rows whose data set is missing are left out."
        ),
        examples=(
            "edgeveil reproduce laplace-inference\n"
            "edgeveil reproduce delm-table3 --data DIR --seeds 1 --only fm_1_class fm_2_class"
        ),
    )
    made.add_argument("name", nargs="?", metavar="NAME", help="an experiment; default: list them")
    text = "folder of the data set's files, or of such folders"
    made.add_argument("--data", type=Path, metavar="DIR", help=text)
    made.add_argument("--seeds", type=int, metavar="N", help="runs of each row; 3, or 1 if quick")
    made.add_argument("--rounds", type=int, metavar="N", help="play at most N rounds of each row")
    text = "simulate on a Ray cluster, or with `local` on a Ray started for the run"
    made.add_argument("--ray", metavar="HOST:PORT", help=text)
    made.add_argument("--quick", action="store_true", help="few rounds on digits, a few minutes")
    made.add_argument("--only", nargs="+", default=(), metavar="ROW", help="run only these rows")
    made.add_argument("--out", type=Path, metavar="DIR", help="default out/reproduce/NAME")
    made.add_argument("--json", action="store_true", help="print JSON, progress to stderr")
    made.set_defaults(handler=_reproduce)


def _reproduce(args: argparse.Namespace) -> int:
    from edgeveil_lab.reproduce.run import (
        ReproductionOptions,
        experiments,
        load_experiment,
        reproduce,
    )

    if args.name is None:
        about = {name: load_experiment(name).about for name in experiments()}
        listed = {name: {key: a[key] for key in ("title", "source")} for name, a in about.items()}
        lines = [f"{name:<18} {f['source']}: {f['title']}" for name, f in listed.items()]
        print(json.dumps(listed, ensure_ascii=False) if args.json else "\n".join(lines))
        return 0
    names = ("data", "quick", "only", "rounds", "ray", "json")
    given = {name: getattr(args, name) for name in names}
    out = args.out or Path("out/reproduce") / (args.name + "-quick" * args.quick)
    seeds = args.seeds if args.seeds is not None else (1 if args.quick else 3)
    return reproduce(args.name, ReproductionOptions(out, seeds, **given))


def _add_load(commands: Subparsers) -> None:
    text = "measure a site's capacity with simulated devices"
    load = command(commands, "loadtest", text, about=_LOAD_ABOUT, examples=_LOAD_EXAMPLES)
    load.add_argument("--scenario", type=Path, metavar="FILE", help="YAML file of these options")
    load.later = _add_load_options
    load.add_argument("--json", action="store_true", help="print the result as JSON")
    load.add_argument(
        "--make-fleet", type=Path, metavar="FILE", help="only write the keys of --devices devices"
    )
    load.set_defaults(handler=_loadtest)


def _add_load_options(parser: argparse.ArgumentParser) -> None:
    from edgeveil_lab.load.scenario import add_arguments

    add_arguments(parser)


def _loadtest(args: argparse.Namespace) -> int:
    from edgeveil_lab.load.scenario import chosen, resolve

    options = resolve(args.scenario, chosen(args))
    if args.make_fleet is not None:
        from edgeveil_lab.load.sites import write_fleet

        write_fleet(args.make_fleet, options.devices)
        print(f"wrote {args.make_fleet}, {args.make_fleet}.enrolments, {args.make_fleet}.users")
        return 0
    from edgeveil_lab.load.command import run

    return run(options, as_json=args.json)


def _add_capacity(commands: Subparsers) -> None:
    made = command(
        commands,
        "capacity",
        "simulate a fleet of any size and report each party's load",
        about=(
            "Simulates a fleet in virtual time: cloud, proxy, stores and selected devices\n"
            "run the real code, all other devices only receive. There is no broker and no\n"
            "encryption. Reports the busiest party of each phase."
        ),
        examples="edgeveil capacity --devices 1000,10000,100000 --out out/capacity",
    )
    made.add_argument(
        "--devices", type=_sizes, default=(10_000,), metavar="N[,N…]", help="default 10000"
    )
    for name, default in CAPACITY.items():
        option = f"--{name.replace('_', '-')}"
        made.add_argument(option, type=int, default=default, metavar="N", help=f"default {default}")
    made.add_argument(
        "--out", type=Path, default=Path("out/capacity"), metavar="DIR", help="default out/capacity"
    )
    made.add_argument("--json", action="store_true", help="print capacity.json, the rest to stderr")
    made.set_defaults(handler=_capacity)


def _capacity(args: argparse.Namespace) -> int:
    from edgeveil_lab.capacity.command import capacity

    options = {name: getattr(args, name) for name in CAPACITY}
    return capacity(args.devices, args.out, **options, as_json=args.json)


def _sizes(text: str) -> tuple[int, ...]:
    found = tuple(sorted({int(one) for one in text.split(",")}))
    if found[0] < 1:
        raise ValueError
    return found


def _add_privacy(commands: Subparsers) -> None:
    audit = command(
        commands,
        "audit",
        "attack every privacy mechanism",
        about=(
            "Attacks each mechanism and compares its claimed ε with the lower bound on ε that its\n"
            "outputs prove. Exit code 1 if a proven claim fails (false alarm: probability 1e-6).\n"
            "`finds ε ≥`: smallest true ε that the attack finds with probability 0.99."
        ),
        examples="edgeveil audit --quick\nedgeveil audit --mechanism fm --runs 200000 --json",
    )
    audit.add_argument("--quick", action="store_true", help="fewer runs, a few minutes")
    audit.add_argument(
        "--runs", type=int, metavar="N", help="runs per side; fewer for the slowest attacks"
    )
    audit.add_argument("--mechanism", default="", metavar="NAME", help="attack only this mechanism")
    audit.add_argument("--json", action="store_true", help="print JSON, progress to stderr")
    audit.set_defaults(handler=_audit)
    attack = command(
        commands,
        "attack",
        "attack a recorded job",
        about=(
            "Attacks the recording of `edgeveil run --record`: reconstructs records from uploads\n"
            "(DLG, iDLG, cosine similarity) and infers membership, with the recorded noise and\n"
            "without. Writes pictures and attack.json to DIR."
        ),
        examples=(
            "edgeveil run configs/jobs/attack_demo.yaml --record --out out/attack\n"
            "edgeveil attack out/attack/recording"
        ),
    )
    attack.add_argument("recording", type=Path, metavar="RECORDING", help="folder of a recording")
    attack.add_argument("--out", type=Path, metavar="DIR", help="default: RECORDING/attack")
    attack.add_argument("--json", action="store_true", help="print attack.json; progress to stderr")
    attack.set_defaults(handler=_attack)


def _attack(args: argparse.Namespace) -> int:
    from edgeveil_lab.attack.command import attack

    return attack(args.recording, args.out, as_json=args.json)


def _audit(args: argparse.Namespace) -> int:
    from edgeveil_lab.audit.command import audit

    return audit(quick=args.quick, as_json=args.json, runs=args.runs, mechanism=args.mechanism)
