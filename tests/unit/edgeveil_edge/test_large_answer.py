"""How many models a device's own process holds at once while it answers with a large one."""

import numpy as np
import pytest
from edge_kit import Device, Round

from edgeveil.jobs import Job, compile_job
from edgeveil.parts.methods.noise_only import NOISE
from edgeveil.parts.round import Answer
from edgeveil.protocol.device_round import SealedAnswer
from edgeveil.protocol.sealed import RoundPackage
from edgeveil.protocol.tensors import pack_tensors, tensor_views
from edgeveil_edge.compute import ComputedAnswer, JobTrial
from edgeveil_edge.compute_worker import AskAnswer, _requests, encode
from tests.kits.memory_peak import peak_bytes

VALUES = 1 << 20
MODEL_BYTES = 4 * VALUES


def plan(values=VALUES):
    train = {"method": "noise_only", "rounds": 2, "values": values, "package_values": values}
    job = {
        "job": "large",
        "data": {"source": "bench", "classes": 2, "input_shape": (1,), "nominal_records": 1},
        "features": ({"name": "identity"},),
        "train": train,
        "privacy": {"epsilon": 1.0},
    }
    return compile_job(Job.model_validate(job))


class FromAnotherProcess:
    """Answers as a computing process does: with arrays that lie in its message."""

    def answer(self, one):
        (spec,) = one.job.plan.cloud.segments(one.round)
        packed = pack_tensors({NOISE: np.ones(spec.shape, spec.dtype)})
        return ComputedAnswer((Answer(tensor_views(packed), ()),))

    def try_job(self, job, *, trains):
        return JobTrial()

    def read_ahead(self, share, schema=None):
        """No record is read."""

    def try_release(self, onnx):
        return ""

    def forget(self, job):
        """Nothing is kept."""


@pytest.mark.parametrize("values", [VALUES, VALUES + 3])  # of a segment's size, and to be padded
def test_an_answer_is_made_with_three_models_beside_the_broadcast(tmp_path, values):
    large = plan(values)
    policy = {"min_devices": 3, "allowed_methods": ("noise_only",)}
    device = Device(tmp_path, compute=lambda _site, _own: FromAnotherProcess(), policy=policy)
    device.knows(large)
    sealed = Round(large, 1, device.keys())
    found = []
    peak = peak_bytes(lambda: found.append(device.answer(sealed)))
    assert isinstance(found[0], SealedAnswer)
    assert found[0].sizes == (sealed.manifest.groups[0].padded_bytes + 48,)
    assert peak < 3.2 * MODEL_BYTES


def test_a_question_takes_one_buffer_of_its_own_size():
    tensors = bytes(MODEL_BYTES)
    package = RoundPackage("train", 1, False, tensors, b"")
    asked = AskAnswer(1, "device", b"digest", 1, package, b"", True, bytes(32), 1.0)
    assert peak_bytes(lambda: encode(asked)) < 1.1 * MODEL_BYTES
    assert _requests.decode(bytes(encode(asked))) == asked
