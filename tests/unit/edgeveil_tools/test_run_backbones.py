"""A job with a backbone, as a run on one machine takes it."""

from edgeveil.parts.features import read_backbones
from edgeveil.parts.features.onnx import sha256_hex
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.local.local_run import owners_policy
from tests.kits.backbone_files import small_backbone

YAML = """
job: frozen
data: {source: digits, classes: 10, input_shape: [64], nominal_records: 64}
features: [{name: identity}, {name: onnx, file: models/own.onnx, input_scale: 16}]
train: {method: fm}
privacy: {epsilon: 8}
local_run: {devices: 9}
"""


def test_the_played_owners_allow_the_runs_own_backbone(tmp_path):
    backbone = small_backbone()
    digest = sha256_hex(backbone)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "own.onnx").write_bytes(backbone)
    (tmp_path / "job.yaml").write_text(YAML)
    job, run = local_job(tmp_path / "job.yaml", Overrides(devices=8))
    assert owners_policy(job, run).allowed_backbones == (digest,)
    assert read_backbones(job.features) == {digest: backbone}
