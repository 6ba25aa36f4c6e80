import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from edgeveil.config.site_files import load_site
from edgeveil.data.split import SPLIT_KEY_FILE, load_split_key
from edgeveil.errors import JobFailed, UsageError
from edgeveil.parts.features import read_backbones
from edgeveil.parts.features.onnx import sha256_hex
from edgeveil.parts.own_records import device_records
from edgeveil_tools.local import reference as run_reference
from edgeveil_tools.local.children import Children
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.local.local_run import owners_policy
from edgeveil_tools.local.run import FILES, prepared
from edgeveil_tools.site.provision import SiteSpec, provision
from tests.kits.backbone_files import small_backbone
from tests.kits.live_site import wait_for

QUICKSTART = Path(__file__).parents[3] / "tests" / "kits" / "quickstart.yaml"


def test_the_played_owners_allow_the_runs_own_backbone(tmp_path):
    backbone = small_backbone()
    (tmp_path / "own.onnx").write_bytes(backbone)
    plain = yaml.safe_load(QUICKSTART.read_text())
    plain["features"] = [{"name": "onnx", "file": "own.onnx", "input_scale": 16}]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(plain))
    job, run = local_job(tmp_path / "job.yaml", Overrides())
    digest = sha256_hex(backbone)
    assert owners_policy(job, run).allowed_backbones == (digest,)
    assert read_backbones(job.features) == {digest: backbone}


def test_an_earlier_runs_files_go_and_others_stay(tmp_path):
    (tmp_path / "logs").mkdir()
    for name in (*FILES, "logs/cloud.log", "mine.txt", "logs/mine.txt"):
        (tmp_path / name).write_text("old")
    alone = prepared(tmp_path, force=True)
    with alone, pytest.raises(UsageError), prepared(tmp_path, force=True):
        pass
    left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert left == {"events.jsonl", "mine.txt", "logs/mine.txt"}
    assert (tmp_path / "events.jsonl").read_text() == ""


def test_the_reference_learns_from_the_devices_training_records_alone(tmp_path):
    job, run = local_job(QUICKSTART, Overrides(devices=6))
    plan = SiteSpec(tmp_path / "site", devices=6, partition=run.partition, seed=run.seed)
    provision(plan)
    key = load_split_key(plan.edge_state(1) / SPLIT_KEY_FILE)
    data = load_site(plan.file("edge-1")).data
    training, evaluation = device_records(data, key, evaluation_share=job.data.evaluation_share)
    pool = run_reference.pooled(job, run, plan)
    assert np.array_equal(pool.x[: len(training)], training.x)
    held_back = {row.tobytes() for row in evaluation.x}
    rows = {row.tobytes() for row in pool.x}
    assert not held_back & rows and 0.8 * 1437 < len(pool) < 1437
    fewer = run_reference.pooled(job, run.model_copy(update={"infer_only": 2}), plan)
    assert len(fewer) < 0.8 * len(pool) and {row.tobytes() for row in fewer.x} <= rows


@pytest.fixture
def children(tmp_path):
    made = Children(tmp_path)
    yield made
    made.stop()


def test_a_child_that_ends_is_named_with_its_last_line(children, tmp_path):
    children.start("cloud", ["cloud", "--config", str(tmp_path / "none.yaml")])
    children._children[0].process.wait(60)
    with pytest.raises(JobFailed) as raised:
        children.check()
    last = (tmp_path / "cloud.log").read_text().strip().splitlines()[-1]
    for part in ("cloud", "2", last, str(tmp_path / "cloud.log")):
        assert part in str(raised.value)


def test_a_child_that_ignores_the_request_is_killed(children, tmp_path, monkeypatch):
    monkeypatch.setattr("edgeveil_tools.local.children.STOP_S", 0.3)
    code = "import signal,time; signal.signal(15, signal.SIG_IGN); print('deaf'); time.sleep(60)"
    script = tmp_path / "deaf"
    script.write_text(f"#!{sys.executable}\n{code}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    children.start("deaf", [])
    wait_for((tmp_path / "deaf.log").read_text, "the child's start")
    (child,) = children._children
    children.stop()
    assert child.process.returncode == -9
