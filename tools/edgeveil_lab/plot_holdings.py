"""Who holds what in a job's local run, as a picture for a page.

python -m edgeveil_lab.plot_holdings JOB [--data DIR] --out FILE.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.report.holdings import draw, height_of, holdings


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the picture that a run's report has."""
    parser = argparse.ArgumentParser(description="Draws who holds what in a job's local run.")
    parser.add_argument("job", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    held = holdings(*local_job(args.job, Overrides(data=args.data)))
    figure = Figure(figsize=(7.4, height_of(held)), layout="constrained")
    draw(figure, held)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=130, metadata={"Software": None})
    print(args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
