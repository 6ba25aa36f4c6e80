"""A whole job on a mix of maps, a frozen backbone among them, over the memory transport."""

from edgeveil.config.policy import Policy
from edgeveil.jobs import load_job
from edgeveil.parts.features import backbone_digests
from tests.kits.backbone_files import small_backbone
from tests.kits.fleet import Fleet

YAML = """
job: mixed
data: {source: digits, classes: 10, input_shape: [64], nominal_records: 150}
features:
  - {name: identity, input_scale: 16, shift: -0.3}
  - {name: gabor, input_scale: 16, image: [8, 8], pool: 4, orientations: 4, scales: 1}
  - {name: onnx, file: backbone.onnx, input_scale: 16, weight: 0.5}
train: {method: fm, rounds: 2}
privacy: {epsilon: 8}
round: {deadline_s: 20, min_batch: 3, grace_s: 1}
encrypt: {laplace_eval: {laplace_eval_eps: 20}}
unsupervised: {every_rounds: 2}
"""


def mixed_job(folder):
    (folder / "backbone.onnx").write_bytes(small_backbone(features=20))
    (folder / "job.yaml").write_text(YAML)
    return load_job(folder / "job.yaml")


def test_a_job_on_a_mix_of_maps_completes_where_owners_allow_the_backbone(tmp_path):
    wanted = mixed_job(tmp_path)
    policy = Policy(allowed_backbones=backbone_digests(wanted.features))
    fleet = Fleet(tmp_path / "site", 6, policy=policy)
    job = fleet.submit(wanted)
    assert fleet.finish(job) == "completed"
    events = [event.data for event in fleet.store.events_after(0, job)]
    rounds = [data for data in events if "accuracy" in data and "uploads" in data]
    assert [data["uploads"] for data in rounds] == [6] * 4
    assert rounds[-1]["accuracy"] > 0.6
    assert not any(node.refused for node in fleet.net.nodes.values())
