"""`edgeveil validate FILE…`: says what is wrong with configuration files, and starts nothing."""

from __future__ import annotations

from pathlib import Path

import yaml

from edgeveil.errors import ConfigError
from edgeveil.jobs.shuffle_amplification import shuffled
from edgeveil_tools.data_check import published_largest, scale_notes
from edgeveil_tools.files import load
from edgeveil_tools.rehearsed import rehearse_file


def validate(paths: list[Path], *, show: bool = False) -> int:
    """Print `FILE: ok (kind)` or every problem of each file, and where a job would stop early.

    A job is played on made-up records, one round of each kind, so that whatever would fail after
    budget was spent fails here. Told of it too: what the shuffle earns it, where that is proven,
    and what its aggregation claims.

    `show` prints each job whole: what its preset and the defaults fill in.

    Returns 0 where all are sound, else 2. Whether the keys, passwords and data that a site
    file names exist is for the process to see when it starts.
    """
    code = 0
    for path in paths:
        try:
            kind, found = load(path)
            job, plan = found if isinstance(found, tuple) else (None, None)
            if plan:
                rehearse_file(path, plan)
        except ConfigError as error:
            print(error)
            code = error.exit_code
        else:
            note = plan.stop_note if plan else ""
            print(f"{path}: ok ({kind}{'; will be ' + note if note else ''})")
            scale = scale_notes(plan.job, published_largest(plan.job.data.source)) if plan else []
            for line in (*plan.notes, *scale) if plan else ():
                print(f"  {line}")
            if plan and plan.aggregation_note:
                print(f"  {plan.aggregation_note}")
            for credit in shuffled(plan) if plan else ():
                print(f"  after the shuffle, {credit}")
            if show and job:
                plain = job.model_dump(mode="json")
                print(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), end="")
    return code
