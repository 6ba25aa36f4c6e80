"""docs/walkthroughs/deploy.md, then the rest of docs/deploy.md, as they stand: a fleet from its
plan to a job and back."""

import re

import pytest

from tests.kits.guides import await_free, blocks, started

pytestmark = pytest.mark.slow

GUIDE = "docs/deploy.md"
WALKTHROUGH = "docs/walkthroughs/deploy.md"


def test_the_guide_makes_a_fleet_that_runs_a_job(tmp_path):
    await_free(8883, 8884, 18701, 18702)
    walk, guide = blocks(WALKTHROUGH, "sh walk"), blocks(GUIDE, "sh fleet")
    assert guide[:4] == walk[:4]  # the guide's beginning is played by the walkthrough
    assert len(guide) == 6
    (targets,) = blocks(GUIDE, "sh targets")
    script = "".join([*walk[:4], targets, *walk[4:], *guide[4:]])
    # Others of these tests have the usual ports of the pages.
    dry_run = "edgeveil site apply clinics --dry-run\n"
    other = "sed -i 's/8701/18701/; s/8702/18702/' clinics/fleet.yaml\n" + dry_run
    script = script.replace(dry_run, other, 1)
    with started(script, tmp_path) as run:
        code = run.wait(240)
    told = (tmp_path / "log").read_text()
    assert code == 0, told
    assert re.search(r"digits-\w+: completed", told), told
    answered = re.search(r"^ +5 +class \d +probability", told, re.MULTILINE)
    assert answered, told
    for name in ("units/edgeveil-proxy@.service", "compose/compose.yaml"):
        assert (tmp_path / name).exists()
    assert "-  min_batch_floor: 3" in told
    assert re.search(r"revoked  \S+  box-0004", told), told
