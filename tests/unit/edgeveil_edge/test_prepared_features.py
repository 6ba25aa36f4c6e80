"""Workers begin with what a trial has found a job to need."""

import hashlib
from pathlib import Path

from edgeveil.jobs import parse_plan
from edgeveil.parts.features.pictures import axes_of
from edgeveil_edge import compute_worker as wire
from edgeveil_edge.compute_worker import ComputeServer


def test_after_a_trial_each_worker_has_the_axes_of_drawn_pictures_from_its_beginning():
    text = Path("configs/jobs/quickstart.yaml").read_text("utf-8")
    plan = parse_plan(text.partition("local_run:")[0])
    canonical = plan.job.canonical()
    digest = hashlib.sha256(canonical).digest()
    server = ComputeServer()
    taught = wire.LoadJob(digest, canonical, b"", (), trains=True)
    reply = wire.decode_reply(bytes(server.change_state(wire.encode(taught))))
    assert isinstance(reply, wire.RequestDone)
    axes_of.cache_clear()
    server.change_state(wire.encode(wire.LoadModules((), digest)))
    assert axes_of.cache_info().currsize == 1
