"""A round's times: from the cloud's events and the generators' counts."""

from __future__ import annotations

from edgeveil_lab.load.run_log import LoadRunLog


def event(type_: str, time_s: float, **data) -> dict:
    return {"type": type_, "time": time_s, "data": data}


def committed(time_s: float, **data) -> dict:
    return event("exchange_committed", time_s, exchange=1, attempt=1, uploads=50, **data)


def played() -> LoadRunLog:
    run_log = LoadRunLog()
    run_log.take(event("broadcast", 100.0, kind="round", round="round 1", selected=60))
    run_log.take(event("batch", 106.0))
    run_log.take(committed(108.0, refused={"norm": 2}))
    run_log.take(event("job_completed", 109.0, reason=""))
    return run_log


def test_a_round_is_cut_into_its_phases():
    counts = {
        "first_offer_s": 103.0,
        "last_ack_s": 105.0,
        "offered": 60,
        "upload_bytes": 6000,
        "upload_messages": 120,
    }
    [row] = played().rows({(1, 1): counts})
    assert row == {
        "round": 1,
        "attempt": 1,
        "selected": 60,
        "uploads": 50,
        "seconds": 8.0,
        "broadcast_s": 3.0,
        "upload_s": 2.0,
        "handover_s": 1.0,
        "absorb_s": 2.0,
        "measured_s": 5.0,
        "uploads_per_s": 10.0,
        "upload_bytes": 100.0,
        "upload_messages": 2.0,
    }


def test_refusals_of_the_cloud_and_the_end_are_kept():
    run_log = played()
    assert run_log.refused == {"norm": 2}
    assert (run_log.ended, run_log.reason) == ("completed", "")


def test_a_round_of_which_no_generator_told_is_still_a_round():
    [row] = played().rows({})
    assert row["measured_s"] == 2.0
    assert row["upload_bytes"] == 0


def test_an_acknowledgement_after_the_batch_does_not_make_a_phase_negative():
    counts = {"first_offer_s": 103.0, "last_ack_s": 107.5, "offered": 60}
    [row] = played().rows({(1, 1): counts})
    assert (row["upload_s"], row["handover_s"], row["absorb_s"]) == (3.0, 0.0, 2.0)


def test_a_cloud_whose_clock_is_ahead_is_told_by_ours():
    run_log = LoadRunLog(ahead_s=50.0)
    run_log.take(event("broadcast", 150.0, kind="round", round="round 1", selected=60))
    run_log.take(event("batch", 156.0))
    run_log.take(committed(158.0))
    [row] = run_log.rows({(1, 1): {"first_offer_s": 103.0, "last_ack_s": 105.0, "offered": 60}})
    assert (row["broadcast_s"], row["upload_s"], row["absorb_s"]) == (3.0, 2.0, 2.0)
