"""A job with a backbone, as a run on one machine takes it."""

import pytest

from edgeveil.jobs import parse_job
from edgeveil.parts.features import backbone_digests, read_backbones
from edgeveil.parts.features.onnx import sha256_hex
from edgeveil_tools.local.job import Overrides, local_job, submitted
from edgeveil_tools.local.local_run import owners_policy
from tests.kits.backbone_files import small_backbone

BACKBONE = small_backbone()
DIGEST = sha256_hex(BACKBONE)
YAML = """
job: frozen
data: {source: digits, classes: 10, input_shape: [64], nominal_records: 64}
features: [{name: identity}, {name: onnx, file: models/own.onnx, input_scale: 16}]
train: {method: fm}
privacy: {epsilon: 8}
local_run: {devices: 9}
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "own.onnx").write_bytes(BACKBONE)
    (tmp_path / "job.yaml").write_text(YAML)
    return tmp_path / "job.yaml"


def test_the_played_owners_allow_the_runs_own_backbone(path):
    job, run = local_job(path, Overrides(devices=8))
    assert owners_policy(job, run).allowed_backbones == (DIGEST,)
    assert read_backbones(job.features) == {DIGEST: BACKBONE}


def test_what_is_submitted_names_the_digest_and_no_file(path):
    sent = submitted(local_job(path, Overrides())[0])
    assert b"own.onnx" not in sent
    assert backbone_digests(parse_job(sent).features) == (DIGEST,)
