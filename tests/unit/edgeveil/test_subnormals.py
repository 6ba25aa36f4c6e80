"""Numbers, not times: each case computes something that is 0 only where subnormals are flushed."""

import subprocess
import sys
from fractions import Fraction
from threading import Thread

import numpy as np
import pytest

from edgeveil import subnormals
from edgeveil.errors import PrivacyError
from edgeveil.evaluation.onnx_session import open_session, run_session
from edgeveil.privacy.grid import exact_matmul, quantise
from edgeveil.privacy.sampler import SeededRandom, discrete_gaussian, discrete_laplace
from edgeveil.subnormals import (
    flush_subnormals,
    flushed,
    flushed_training,
    set_flushing,
    subnormals_flushed,
)
from tests.kits.backbone_files import model, node


def through_subnormals():
    """y (n,) = x · 1e-20 · 1e-20 · 1e20 · 1e20, and as large where the middle is no 0."""
    steps = [("x", "small", "a"), ("a", "small", "b"), ("b", "large", "c"), ("c", "large", "y")]
    nodes = [node("Mul", [one, two], [out]) for one, two, out in steps]
    constants = {"small": np.float32([1e-20]), "large": np.float32([1e20])}
    return model(nodes, {"x": ("n",)}, {"y": ("n",)}, constants)


def run(session):
    return run_session(session, "y", {"x": np.ones(1000, np.float32)})


def in_thread(work):
    """What `work` gives in a thread that starts without flushing, as this one does."""
    found = []
    thread = Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture(autouse=True)
def _not_flushed():
    before = set_flushing(False)
    yield
    set_flushing(before)


def alone(script):
    """What a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_thread_and_those_that_it_starts_flush_inside_and_not_afterwards():
    assert not subnormals_flushed() and not in_thread(subnormals_flushed)
    with flushed():
        with flushed():
            assert subnormals_flushed()
        assert subnormals_flushed() and in_thread(subnormals_flushed)
    assert not subnormals_flushed()


def test_a_later_session_flushes_in_the_thread_that_opens_it_and_in_another():
    for _ in range(2):
        session = open_session(through_subnormals())
        assert not run(session).any()
        assert not in_thread(lambda here=session: run(here)).any()
    assert not run(in_thread(lambda: open_session(through_subnormals()))).any()
    assert not subnormals_flushed()


FIRST = """
import threading
import numpy as np
from edgeveil.evaluation.onnx_session import open_session, run_session
from edgeveil.subnormals import subnormals_flushed
from tests.unit.edgeveil.test_subnormals import through_subnormals
opened = []
def work():
    opened.append(open_session(through_subnormals()))
{start}
found = run_session(opened[0], "y", {{"x": np.ones(1000, np.float32)}})
print(found.any(), subnormals_flushed())
"""


@pytest.mark.parametrize(
    "start",
    [
        "work()",
        "t = threading.Thread(target=work); t.start(); t.join()",
        "import onnxruntime; onnxruntime.InferenceSession(through_subnormals()); work()",
    ],
    ids=["here", "in another thread", "after a session of others"],
)
def test_a_process_flushes_from_its_first_session_on(start):
    assert alone(FIRST.format(start=start)) == "False False"


TORCH = """
import torch
from edgeveil.subnormals import flushed_training, torch_threads_flushed
torch.set_num_threads(2)
def products():
    values = torch.full((1 << 20,), 1e-30, requires_grad=True)
    (gradient,) = torch.autograd.grad((values * 1e-9 * 1e30).sum(), values)
    return (values * 1e-9 * 1e30).count_nonzero().item(), gradient.shape[0], torch.get_num_threads()
{before}
with flushed_training():
    print(*products(), torch_threads_flushed())
print(*products())
"""


@pytest.mark.parametrize(
    ("before", "threads", "afterwards"),
    [("", 2, 1 << 19), ("products()", 1, 1 << 20)],
    ids=["its threads start flushing", "its threads started without"],
)
def test_torch_flushes_in_every_thread_that_it_uses(before, threads, afterwards):
    inside, after = alone(TORCH.format(before=before)).splitlines()
    assert inside == f"0 {1 << 20} {threads} True"
    assert after == f"{afterwards} {1 << 20} 2"  # a thread that torch started keeps flushing


def test_blas_flushes_in_a_process_that_flushes_first():
    script = """
from edgeveil.subnormals import flush_subnormals
flush_subnormals()
import numpy as np
for kind, tiny in ((np.float32, 1e-39), (np.float64, 1e-310)):
    print(np.count_nonzero(np.full((900, 900), tiny, kind) @ np.full((900, 900), 1e30, kind)))
"""
    assert alone(script).split() == ["0", "0"]


def drawn_and_summed():
    """Noise of every exact sampler from one seed, and exact sums of the largest and least rows."""
    random = SeededRandom(5)
    scales = Fraction(1, 3), Fraction(2**40)
    noise = [discrete_laplace(scale, (50,), random) for scale in scales]
    noise += [discrete_gaussian(scale, (50,), random) for scale in scales]
    rows = np.random.default_rng(1).normal(size=(70, 5))
    rows[0], rows[1], rows[2] = 1e-310, 1e308, 5e-324
    rows[3, :2] = 1e-308, 1e-160
    steps = quantise(rows, 1.0)
    return [part.tobytes() for part in (*noise, steps, exact_matmul(steps.T, steps))]


def test_noise_and_exact_sums_keep_their_bits():
    plain = drawn_and_summed()
    with flushed():
        assert drawn_and_summed() == plain


def test_nothing_is_run_where_it_cannot_be(monkeypatch):
    monkeypatch.setattr(subnormals, "_SWITCHES", {})  # a processor without the switch
    monkeypatch.setitem(sys.modules, "torch", None)  # which could know it
    for context in (flushed, flushed_training):
        with pytest.raises(PrivacyError, match="subnormal numbers"), context():
            pytest.fail("reached")
    with pytest.raises(PrivacyError, match="x86-64 or 64-bit ARM"):
        flush_subnormals()
    with pytest.raises(PrivacyError, match="subnormal numbers"):
        open_session(through_subnormals())
