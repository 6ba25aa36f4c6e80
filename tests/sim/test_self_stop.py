"""A job with a self-stop ends early for everybody, with the model it has."""

from __future__ import annotations

from pathlib import Path

from tests.kits.fleet import Fleet, small_job


def test_training_ends_before_the_round_that_would_pass(tmp_path: Path) -> None:
    whole = small_job()
    stop = {"rule": "moments_delta", "epsilon": whole.privacy.epsilon, "delta": whole.privacy.delta}
    privacy = {**whole.privacy.model_dump(mode="json"), "stop": stop}
    fleet = Fleet(tmp_path, 6)
    job = fleet.submit(small_job(privacy=privacy, unsupervised={"every_rounds": 1}))
    assert fleet.finish(job) == "completed"
    events = fleet.store.events_after(0, job)
    rounds = [e.data["number"] for e in events if e.type == "exchange_committed"]
    assert 0 < max(rounds) < whole.rounds
    assert events[-1].type == "job_completed"
    assert events[-1].data["reason"] == (
        f"stopped by privacy.stop after round {max(rounds)} of {whole.rounds}"
    )
    printed = events[-1].data["privacy"]["training"]["epsilon"]
    assert printed < whole.privacy.epsilon
    assert {box.ledger.spent().epsilon for box in fleet.devices} == {printed}
    fleet.net.run(lambda: False, fleet.net.now_s + 5)
    assert all(list((b.site.state_dir / "releases").rglob("model.onnx")) for b in fleet.devices)
