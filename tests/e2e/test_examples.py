"""What stands in docs/examples runs, and keeps outputs that are those of a run."""

import contextlib
import json
from pathlib import Path

import pytest

from tests.notebooks import run_cells

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def test_the_notebook_runs_and_its_kept_outputs_are_its_own():
    notebook = json.loads((EXAMPLES / "quickstart.ipynb").read_text(encoding="utf-8"))
    with contextlib.chdir(EXAMPLES):
        found = run_cells(notebook)
    kept = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [[sorted(one.get("data", one)) for one in cell] for cell in found] == [
        [sorted(one.get("data", one)) for one in cell] for cell in kept
    ]
    assert all(kept)
    # What no library's rounding moves is the same to the letter: the job, its soundness, its price.
    assert found[:4] == kept[:4]
