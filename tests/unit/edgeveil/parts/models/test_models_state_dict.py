"""A user's state_dict: one identity whatever the file, no code, and problems told by name."""

import os
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from edgeveil.errors import ConfigError, DataError
from edgeveil.jobs import Job, compile_job, load_job, load_plan, parse_job
from edgeveil.jobs.artifacts import carried_digests, kept_digests, read_artifacts
from edgeveil.parts.models import build_network
from edgeveil.parts.models import network as files
from edgeveil_tools.local.job import submitted

JOB = """
job: pretrained
data: {source: digits, classes: 3, input_shape: [4], nominal_records: 64}
model: {BLOCK}
train: {method: dp_sgd, rounds: 2}
privacy: {epsilon: 8, delta: 1.0e-5}
"""


def module():
    torch.manual_seed(1)
    return nn.Sequential(OrderedDict(hidden1=nn.Linear(4, 5), output=nn.Linear(5, 3)))


SIZE_2 = b"\x02" + bytes(7)


def job_file(folder, name, adapters="", block=None):
    block = block or f"name: mlp, hidden: [5], state_dict: {name}{adapters}"
    path = folder / "job.yaml"
    path.write_text(JOB.replace("BLOCK", block))
    return path


def parsed(block):
    return parse_job(JOB.replace("BLOCK", block))


def refused(folder, name):
    with pytest.raises(ConfigError) as error:
        load_job(job_file(folder, name))
    (problem,) = error.value.places
    assert problem.key == "model.state_dict"
    return problem.text


def saved(folder, found, name="weights.pt"):
    torch.save(found, folder / name)
    return name


def test_the_same_tensors_are_the_same_job_whatever_the_file(tmp_path):
    weights = module().state_dict()
    torch.save(weights, tmp_path / "a.pt")
    torch.save(dict(reversed(list(weights.items()))), tmp_path / "b.pth")
    save_file(weights, tmp_path / "c.safetensors", {"made": "elsewhere"})
    jobs = [load_job(job_file(tmp_path, name)) for name in ("a.pt", "b.pth", "c.safetensors")]
    assert len({job.digest() for job in jobs}) == 1
    weights["output.bias"][0] += 1
    torch.save(weights, tmp_path / "a.pt")
    assert load_job(job_file(tmp_path, "a.pt")).digest() != jobs[0].digest()


def test_what_is_sent_names_a_digest_and_no_file(tmp_path):
    job = load_job(job_file(tmp_path, saved(tmp_path, module().state_dict())))
    assert b"weights.pt" not in job.canonical() + submitted(job)
    assert Job.from_canonical(job.canonical()).digest() == job.digest()
    assert parse_job(submitted(job)).digest() == job.digest()
    with pytest.raises(ConfigError, match="names no file"):
        parsed("name: mlp, hidden: [5], state_dict: weights.pt")
    plain = parsed("name: mlp, hidden: [5]").canonical()  # a job without one keeps its bytes
    assert b"state_dict" not in plain and b"adapters" not in plain


def test_first_weights_are_the_modules_turned_as_the_layers_hold_them(tmp_path):
    weights = module().state_dict()
    plan = load_plan(job_file(tmp_path, saved(tmp_path, weights)))
    plan = plan.with_artifacts(read_artifacts(plan.job))
    first = plan.cloud.initial_state()
    assert np.array_equal(first["hidden1.weight"], weights["hidden1.weight"].numpy().T)
    assert np.array_equal(first["output.bias"], weights["output.bias"].numpy())
    x = torch.rand(6, 4)
    found = plan.context.network.logits({n: torch.tensor(a) for n, a in first.items()}, x)
    relu = nn.Sequential(module()[0], nn.ReLU(), module()[1])
    assert torch.allclose(found, relu(x), atol=1e-6)


def test_frozen_weights_travel_and_those_that_are_trained_do_not(tmp_path):
    name = saved(tmp_path, module().state_dict())
    whole = load_job(job_file(tmp_path, name))
    frozen = load_job(job_file(tmp_path, name, ", adapters: {rank: 1}"))
    (digest,) = kept_digests(whole)
    assert kept_digests(frozen) == carried_digests(frozen) == (digest,)
    assert carried_digests(whole) == ()
    bare = compile_job(Job.from_canonical(whole.canonical()))
    bare.check_backbones()  # a device needs none, and the cloud does not begin without
    with pytest.raises(DataError, match="not here"):
        bare.check_artifacts()


OTHER = {"output.weight": torch.zeros(9, 5), "extra.weight": torch.zeros(2)}
MISTAKES = {
    "missing": (lambda w: {"output.bias": w["output.bias"]}, "lacks hidden1.weight"),
    "unexpected": (lambda w: {**w, **OTHER}, "has extra.weight that the model has not"),
    "shape": (lambda w: {**w, **OTHER}, "output.weight is [9, 5], the model has [3, 5]"),
    "half": (lambda w: {**w, "output.bias": w["output.bias"].half()}, "output.bias (float16)"),
    "nan": (lambda w: {**w, "output.bias": w["output.bias"] / 0}, "not finite: output.bias"),
    "checkpoint": (lambda w: {"epoch": 3, "state_dict": dict(w)}, "is a checkpoint"),
    "list": (lambda w: list(w.values()), "holds a list"),
    # A view of one value that would unpack to 4 GiB.
    "view": (lambda w: {**w, "n": torch.zeros(1).expand(1 << 30)}, "holds more than 32 MiB"),
}


@pytest.mark.parametrize(("change", "message"), MISTAKES.values(), ids=MISTAKES)
def test_the_likeliest_mistakes_are_told_with_their_fix(tmp_path, change, message):
    assert message in refused(tmp_path, saved(tmp_path, change(module().state_dict())))


class Code:
    """What pickle would call."""

    def __init__(self, *given):
        self.given = given

    def __reduce__(self):
        return (os.mkdir, self.given)


def test_code_in_a_file_never_runs(tmp_path):
    made = tmp_path / "made"
    message = refused(tmp_path, saved(tmp_path, {"w": Code(str(made))}))
    assert "nothing else is read" in message
    (tmp_path / "old.pt").write_bytes(pickle.dumps({"w": Code(str(made))}))
    assert "no file of torch.save" in refused(tmp_path, "old.pt")
    assert not made.exists()


def test_sizes_are_checked_before_memory_is_taken(tmp_path):
    with (tmp_path / "large.safetensors").open("wb") as file:
        file.truncate(files.MAX_BYTES + 1)
    assert "more than 32 MiB" in refused(tmp_path, "large.safetensors")
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data/0", bytes(files.MAX_BYTES + 1))
    assert "holds more than 32 MiB" in refused(tmp_path, "bomb.pt")


MANY = b"{" + b",".join(b'"%d":{}' % k for k in range(500_000)) + b"}"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        *((raw, "no safetensors file") for raw in (b"", b"\xff" * 64, SIZE_2 + b"[]")),
        (SIZE_2 + b"{}", "holds no tensors"),
        (len(MANY).to_bytes(8, "little") + MANY, "no safetensors file"),
    ],
    ids=range(5),
)
def test_what_is_no_safetensors_file_is_refused(tmp_path, raw, message):
    (tmp_path / "w.safetensors").write_bytes(raw)
    assert message in refused(tmp_path, "w.safetensors")


OWN = 'name: python, function: "a:b", weights: [["%s", [3, 4]]]'


def test_a_weights_name_that_no_segment_may_have_is_refused_unless_all_are_one_segment():
    with pytest.raises(ConfigError, match=r"module\.Conv\.weight is no valid name"):
        parsed(OWN % "Conv.weight")
    assert parsed(OWN % "Conv.weight" + "}\nproxy: {shuffle: whole").proxy.shuffle == "whole"
    network = build_network(parsed(OWN % "conv.weight").model, (4,), 3)
    array = np.ones((3, 4), np.float32)  # an own module finds its names again
    assert network.saved({"module.conv.weight": array}).keys() == {"conv.weight"}
