"""`python -m tests.fuzz`: hostile inputs for every decoder and parser, led by coverage."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from edgeveil.errors import EdgeVeilError, UsageError
from tests.fuzz.campaign import Bounds, fuzz, side_by_side
from tests.fuzz.table import NAMES, target

_EXAMPLES = """examples:
  python -m tests.fuzz --runs 1000000          every target
  python -m tests.fuzz frame job_yaml          two of them
  python -m tests.fuzz --jobs 4                four targets side by side
  python -m tests.fuzz --list
  python -m tests.fuzz frame --replay FILE     one input again, with its traceback
"""


def _parser():
    made = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("targets", nargs="*", metavar="TARGET", help="names; none: all")
    bounds = Bounds()

    def number(name, default, about, unit="N"):
        about = f"{about} (default %(default)s)"
        made.add_argument(name, type=int, default=default, metavar=unit, help=about)

    number("--runs", bounds.runs, "inputs per target")
    number("--seconds", bounds.seconds, "at most so long per target; 0: until all are fed", "S")
    number("--jobs", 1, "targets side by side")
    number("--input-timeout", bounds.input_timeout_s, "longer for one input is a finding", "S")
    number("--rss-mb", bounds.rss_mb, "more memory than this is a finding", "MB")
    number("--seed", bounds.seed, "for the same inputs again; 0: others each time")
    made.add_argument(
        "--out", type=Path, default=Path("out/fuzz"), metavar="DIR",
        help="where findings go (default %(default)s)",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    made.add_argument("--list", action="store_true", help="name the targets and end")
    made.add_argument("--replay", type=Path, metavar="FILE", help="feed this input, no fuzzing")
    return made


def main(argv=None):
    """0: nothing found; 1: findings; 2: wrong use; 130: interrupted."""
    options = _parser().parse_args(argv)
    if options.list:
        print("\n".join(NAMES))
        return 0
    try:
        if options.replay:
            taken = [target(name).feed(options.replay.read_bytes()) for name in options.targets]
            print(", ".join("taken" if one else "refused" for one in taken))
            return 0
        outcomes = _all(options)
    except EdgeVeilError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps([asdict(one) for one in outcomes], indent=2))
    return 0 if all(one.clean for one in outcomes) else 1


def _all(options):
    bounds = Bounds(
        options.runs, options.seconds, options.input_timeout, options.rss_mb, options.seed
    )
    if options.jobs < 1:
        raise UsageError("a number is too small", where="--jobs", fix="use 1 or more")
    table = sys.stderr if options.json else sys.stdout

    def told(name):
        one = fuzz(name, bounds, options.out)
        ended = ", ".join(one.crashes) or one.ended
        row = (name, one.runs, one.runs_per_s, one.coverage, one.new_paths, one.peak_rss_mb, ended)
        print(_row(*row), file=table, flush=True)
        return one

    print(_row("target", "runs", "runs/s", "edges", "new", "MB", "outcome"), file=table, flush=True)
    return side_by_side(told, options.targets or NAMES, options.jobs)


def _row(*cells):
    name, *rest, ended = map(str, cells)
    return f"{name:16}" + "".join(f"{cell:>11}" for cell in rest) + f"  {ended}"


if __name__ == "__main__":
    sys.exit(main())
