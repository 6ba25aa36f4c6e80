"""A job's frozen backbone on a device: allowed by its digest, or no record is read."""

import pytest
from edge_kit import FIRST, QUADRATIC, Device, Round, announcement, job

from edgeveil.errors import ProtocolError
from edgeveil.jobs import compile_job
from edgeveil.parts.features.onnx import sha256_hex
from edgeveil.protocol.device import InstallJob
from edgeveil.protocol.device_round import SealedAnswer
from edgeveil.protocol.sealed import JobPackage
from tests.kits.backbone_files import small_backbone

BACKBONE = small_backbone(side=2, features=3)
DIGEST = sha256_hex(BACKBONE)


def plan_for(graph=BACKBONE, features=3, form=(1, 2, 2)):
    entry = {
        "name": "onnx",
        "sha256": sha256_hex(graph),
        "input_form": form,
        "output_dim": features,
        "input_scale": 1.0,
    }
    plan = compile_job(job(features=({"name": "identity"}, entry)))
    return plan.with_artifacts({sha256_hex(graph): graph})


PLAN = plan_for()


def device(folder, *allowed, **changes):
    return Device(folder, policy={"min_devices": 3, "allowed_backbones": allowed}, **changes)


def test_a_backbone_that_the_owner_allows_is_learned_on(tmp_path):
    box = device(tmp_path, DIGEST).knows(PLAN)
    for index in (QUADRATIC, FIRST):
        sealed = Round(PLAN, index, box.keys())
        found = sealed.tensors(box.answer(sealed))
        assert set(found) >= {spec.name for spec in PLAN.segments(sealed.round)}
    assert box.load.reads == 1
    assert isinstance(
        box.restarted(policy=box.site.policy).answer(Round(PLAN, FIRST, box.keys())), SealedAnswer
    )


@pytest.mark.parametrize("allowed", [(), ("0" * 64,)], ids=["none", "another"])
@pytest.mark.parametrize("role", ["train", "infer"])
def test_another_is_refused_by_its_digest_before_a_record_is_read(tmp_path, allowed, role):
    box = device(tmp_path, *allowed, role=role).knows(PLAN)
    answer = box.declines(PLAN, FIRST)
    assert answer.why.startswith("policy.allowed_backbones: ")
    assert DIGEST in answer.why
    assert box.load.reads == 0
    assert box.ledger.spent().epsilon == 0


@pytest.mark.parametrize(
    "sent",
    [(), (small_backbone(side=2, features=3, seed=1),), (BACKBONE, b"more")],
    ids=["none", "another", "more"],
)
def test_what_comes_with_the_job_must_be_what_it_names(tmp_path, sent):
    box = device(tmp_path, DIGEST)
    package = JobPackage(PLAN.job.canonical(), b"graph", sent)
    with pytest.raises(ProtocolError) as caught:
        box.host.perform(InstallJob(announcement(PLAN, box.keys()), package))
    assert caught.value.reason == "wrong_backbone"
    assert box.store.load().jobs == {}
