"""`python -m tests.chaos`: inject faults while jobs run, then check for losses.

OUT gets `chaos.json` and `logs/`. Exit code 0: every check holds; 1: a violation; 130: Ctrl-C, with
everything ended."""

import argparse
import shutil
import signal
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from edgeveil.errors import INTERRUPTED, EdgeVeilError
from edgeveil.ray_cluster import imported_ray
from edgeveil_tools.local.children import scratch
from edgeveil_tools.local.data import check_data
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.local.run import signals
from edgeveil_tools.result import write_json
from tests.chaos.checks import check_all, rounds_during_faults
from tests.chaos.evidence import collect
from tests.chaos.run import ChaosRun
from tests.chaos.site import ASKED_BY

JOB = Path(__file__).parent / "chaos.yaml"
CORRELATED_JOB = Path(__file__).parent / "correlated.yaml"
_SHOWN = 20  # violations of one check that are listed


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="default 20")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule, default 1")
    parser.add_argument("--secure", action="store_true", help="with secure sums; one device has"
                        " wrong masks in every round")  # fmt: skip
    parser.add_argument("--correlated", action="store_true", help="the same with correlated noise")
    parser.add_argument("--cells", type=int, default=1, help="cells under one cloud, default 1")
    parser.add_argument("--engine", choices=("local", "ray"), help="workers that open batches, of"
                        " the cloud or of a Ray cluster; they are killed too")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("out/chaos"), help="default out/chaos")
    parser.add_argument("--keep", action="store_true", help="keep the site's folder")
    asked = parser.parse_args(argv)
    out = asked.out.absolute()
    (out / "chaos.json").unlink(missing_ok=True)
    shutil.rmtree(out / "logs", ignore_errors=True)
    (out / "logs").mkdir(parents=True)
    try:
        return _play(asked, out)
    except EdgeVeilError as error:
        print(f"tests.chaos: {error}", file=sys.stderr)
        return error.exit_code


def _say(line):
    print(line, flush=True)


def _interrupt(*_):
    raise KeyboardInterrupt


def _play(asked, out):
    wanted = Overrides(settings=(("aggregation.secure", True),) if asked.secure else None)
    path = CORRELATED_JOB if asked.correlated else JOB
    job, run = local_job(path, wanted)
    if asked.cells > 1:  # each has as many devices as the job's one cell
        job, run = local_job(path, {**wanted, "devices": asked.cells * run.devices})
    check_data(job, run)
    if asked.engine == "ray":
        imported_ray(ASKED_BY)
    logs = out / "logs"
    # A second Ctrl-C must not leave processes behind.
    with scratch(keep=asked.keep) as folder, signals(signal.SIG_IGN):
        chaos = ChaosRun(
            job, run, asked.kills, asked.seed, asked.engine, folder, logs, _say, asked.cells
        )
        _say(f"{len(chaos.faults)} faults: seed {asked.seed}; site in {folder}, logs in {logs}")
        try:
            with signals(_interrupt):
                chaos.run()
        except KeyboardInterrupt:
            _say("Interrupted; nothing was checked")
            return INTERRUPTED
        finally:
            chaos.stop()
        found = collect(chaos.site.site, logs, chaos.site.wrong)
    checked = check_all(found, chaos.facts())
    sound = all(not one.violations for one in checked)
    write_json(out / "chaos.json", {"ok": sound, **_result(chaos, found)} | {
        "checks": [asdict(one) | {"violations": one.violations[:_SHOWN]} for one in checked],
    })  # fmt: skip
    for one in checked:
        outcome = f"{len(one.violations)} VIOLATIONS" if one.violations else "holds"
        _say(f"{one.looked:>7}  {outcome:<14}  {one.name}: {one.about}")
        for line in one.violations[:_SHOWN]:
            _say(f"         {line}")
    _say(f"{'every check holds' if sound else 'a check does not hold'}; see {out}")
    return 0 if sound else 1


def _result(chaos, found):
    """Return plain values for JSON."""
    commit = ("index", "attempt", "uploads", "cells", "committed_s")
    return {
        "kills": chaos.kills,
        "seed": chaos.seed,
        "seconds": chaos.now_s(),
        **asdict(chaos.facts()),
        "rounds_during_faults": rounds_during_faults(found, chaos.facts()),
        "links": chaos.site.relays.counts(),
        "jobs": [
            {
                **{name: getattr(job, name) for name in ("id", "status", "reason")},
                "resumed": chaos.jobs.resumed[job.id],
                "rounds": [{name: getattr(one, name) for name in commit} for one in job.commits],
            }
            for job in found.jobs
        ],
        "receipts": dict(Counter(r.state for device in found.devices for r in device.receipts)),
    }


if __name__ == "__main__":
    sys.exit(main())
