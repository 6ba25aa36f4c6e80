"""A load test's result: rounds, rates, costs of processes, faults, and the raw ratio."""

import os

import pytest
from load_kit import outcome_of, result

from edgeveil_lab.load.counters import UploadCounters
from edgeveil_lab.load.display import warnings
from edgeveil_lab.load.leader import FleetTotals
from edgeveil_lab.load.processes import ProcessFigures, ProcessWatch
from edgeveil_lab.load.raw_relay import ratio
from edgeveil_lab.load.run_log import LEAST_S, LoadRunLog, faults


def played(ahead_s=0.0):
    """Take one round's events of a cloud whose clock is ahead."""
    run_log = LoadRunLog(ahead_s=ahead_s)
    committed = {"exchange": 1, "attempt": 1, "uploads": 50, "refused": {"norm": 2}}
    for kind, time_s, data in (
        ("broadcast", 100.0, {"kind": "round", "round": "round 1", "selected": 60}),
        ("batch", 106.0, {}),
        ("exchange_committed", 108.0, committed),
        ("job_completed", 109.0, {"reason": ""}),
    ):
        run_log.take({"type": kind, "time": time_s + ahead_s, "data": data})
    return run_log


@pytest.mark.parametrize("ahead_s", [0.0, 50.0])
def test_a_round_is_cut_into_its_phases_none_of_them_negative(ahead_s):
    counts = {"first_offer_s": 103.0, "last_ack_s": 105.0, "offered": 60}
    counts |= {"upload_bytes": 6000, "upload_messages": 120}
    run_log = played(ahead_s)
    assert (run_log.refused, run_log.ended, run_log.reason) == ({"norm": 2}, "completed", "")
    [row] = run_log.rows({(1, 1): counts})
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
    [row] = run_log.rows({})  # no generator told of it
    assert (row["measured_s"], row["upload_bytes"]) == (2.0, 0)
    late = {"first_offer_s": 103.0, "last_ack_s": 107.5, "offered": 60}
    [row] = run_log.rows({(1, 1): late})
    assert (row["upload_s"], row["handover_s"], row["absorb_s"]) == (3.0, 0.0, 2.0)


def dialled(first_dial_s, last_up_s):
    counters = UploadCounters()
    counters.first_dial_s, counters.last_up_s = first_dial_s, last_up_s
    return counters.snapshot()


@pytest.mark.parametrize(
    ("times_s", "seconds"),
    [
        ([(10.5, 12.0), (10.0, 11.0)], 2.0),  # from whoever began first to whoever was last
        ([(10.0, 11.0), (10.5, 14.0)], 4.0),
        ([(10.0, 12.0), (9.0, None)], 3.0),
        ([], 0.0),
    ],
)
def test_connecting_lasts_from_the_first_dial_to_the_last_connection(times_s, seconds):
    assert FleetTotals([dialled(*one) for one in times_s], []).connecting_s() == seconds


GROWS, FLAT = ({"cloud": {"mib_per_hour": 40.0, "verdict": one}} for one in ("grows", "flat"))


@pytest.mark.parametrize(
    ("found", "count"),
    [
        ({"lost": 1}, 1),
        ({"duplicated": 2}, 1),
        ({"sum_matches": False}, 1),
        ({"drift": GROWS}, 1),
        ({}, 0),
        ({"sum_matches": None}, 0),
        ({"drift": FLAT}, 0),
    ],
)
def test_a_fault_is_told_and_a_sound_result_has_none(found, count):
    assert len(list(faults(result() | found))) == count
    busy = {"generator": {"note": "a generator used 97 % of a core"}}
    losses = len(list(warnings(result() | found)))
    assert len(list(warnings(result() | found | busy))) == losses + 1


MIB = 1 << 20


def use(cpu_s, rss_mib=50, peak_mib=None, started_s=7.0):
    return ProcessFigures(
        cpu_s, rss_mib * MIB, None if peak_mib is None else peak_mib * MIB, started_s
    )


def watching(*answers):
    """Return a watch that has sampled `proxy` once per answer."""
    watch, left = ProcessWatch(), list(answers)

    def read():
        answer = left.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    watch.add_read("proxy", read)
    for _ in answers:
        watch.look()
    return watch


def test_a_process_of_this_machine_is_looked_at_itself():
    watch = ProcessWatch()
    watch.add({"me": os.getpid(), "gone": 2**22 + 1})
    watch.look()
    assert watch.cpu_s()["me"] > 0
    assert watch.peak_rss_bytes()["me"] >= watch.rss_bytes()["me"] > MIB
    assert watch.peak_rss_bytes()["gone"] is None
    assert list(watch.troubles()) == ["gone"] and str(2**22 + 1) in watch.troubles()["gone"]


@pytest.mark.parametrize(
    ("looks", "peak_mib", "cpu_s"),
    [
        ([use(1, 50, 300), use(2, 60, 300)], 60, 2),  # 300 was before the test
        ([use(1, 50, 300), use(2, 60, 310)], 310, 2),
        ([use(1, 50, 300), use(2, 90, 300), use(3, 60, 300)], 90, 3),
        ([use(1, 50), use(2, 60)], 60, 2),  # without a kernel mark: the largest sample
        # A new process has a new mark, and its time is added to that of the one before.
        ([use(4, 50, 300), use(1, 40, 80, started_s=9.0), use(1.5, 40, 80, 9.0)], 80, 5.5),
        ([use(4, 50), OSError("timed out")], 50, None),
    ],
)
def test_peak_and_time_are_those_of_the_test(looks, peak_mib, cpu_s):
    watch = watching(*looks)
    assert watch.peak_rss_bytes() == {"proxy": peak_mib * MIB}
    assert watch.cpu_s() == ({} if cpu_s is None else {"proxy": cpu_s})
    assert watch.troubles() == ({"proxy": "timed out"} if cpu_s is None else {})


def marks(*proxy_s, every_s=20.0):
    """Return the proxy's processor seconds after each round; None: no answer."""
    return [({} if s is None else {"proxy": s}, every_s * n) for n, s in enumerate(proxy_s)]


SHORT_S = LEAST_S - 0.1


@pytest.mark.parametrize(
    ("spans", "cpu_s", "ms_per_upload"),
    [
        (marks(1.0, 3.0, 4.0, 6.0), 3.0, 300.0),  # from the first commit to the last
        (marks(1.0, 3.0, 4.0, every_s=SHORT_S), 1.0, None),
        (marks(None, None, None), None, None),
        (marks(0.0, None, 2.0, 3.0), None, None),
        (marks(0.0, 1.0, 2.0, None), None, None),
        (marks(0.0, 1.0, None, 3.0), 2.0, 200.0),  # one look between that failed is no matter
    ],
)
def test_costs_need_both_ends_and_what_is_missing_is_told(spans, cpu_s, ms_per_upload):
    found = outcome_of(watch=watching(use(3.0), OSError("timed out")), marks=spans)
    proxy = found["processes"]["proxy"]
    assert (proxy["cpu_s"], proxy["cpu_ms_per_upload"]) == (cpu_s, ms_per_upload)
    assert proxy["peak_rss_bytes"] == 50 * MIB
    assert any("timed out" in line for line in warnings(found)) == (cpu_s is None)


def test_the_ratio_is_of_uploads_a_second_over_all_rounds():
    rounds = [
        {"uploads": 100, "uploads_per_s": 50.0},  # 2 s
        {"uploads": 100, "uploads_per_s": 100.0},  # 1 s
        {"uploads": 0, "uploads_per_s": None},
    ]
    assert ratio({"rounds": rounds}, {"uploads_per_s": 200.0}) == pytest.approx(1 / 3)
    assert ratio({"rounds": []}, {"uploads_per_s": 200.0}) is None
