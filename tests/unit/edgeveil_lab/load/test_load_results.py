"""A load test's result: rounds, rates, costs, what processes spend, and why it fails."""

from __future__ import annotations

import io
import os

import pytest
from load_kit import outcome_of, result
from rich.console import Console

from edgeveil_lab.load.counters import UploadCounters
from edgeveil_lab.load.display import show_result, warnings
from edgeveil_lab.load.leader import FleetTotals
from edgeveil_lab.load.processes import ProcessFigures, ProcessWatch
from edgeveil_lab.load.report import write_load_report
from edgeveil_lab.load.run_log import LEAST_S, LoadRunLog, RunMeasurements, _cost, faults
from edgeveil_lab.load.scenario import LoadOptions


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


def marked(monkeypatch, *times_s: float) -> RunMeasurements:
    measured = RunMeasurements(LoadOptions(devices=10), "a broker")
    for rounds, at_s in enumerate(times_s):
        monkeypatch.setattr("edgeveil_lab.load.run_log.time.monotonic", lambda at_s=at_s: at_s)
        measured.mark({"proxy": 2.0 * rounds}, {"bytes_down": 1000 * rounds}, rounds)
    return measured


def test_the_span_is_from_the_first_commit_to_the_last(monkeypatch):
    measured = marked(monkeypatch, 100.0, 105.0, 110.0, 105.0 + LEAST_S)
    cost = _cost(measured, [{"uploads": 10}] * 3)
    assert (cost.seconds, cost.uploads, cost.cpu_s) == (LEAST_S, 20, {"proxy": 4.0})
    assert cost.rate(1000 * cost.cpu_s["proxy"], cost.uploads) == pytest.approx(200)


def test_of_a_short_one_nothing_is_said(monkeypatch):
    measured = marked(monkeypatch, 100.0, 105.0, 104.9 + LEAST_S)
    cost = _cost(measured, [{"uploads": 10}] * 2)
    assert cost.rate(1.0, 1.0) is None


def totals(*counted: UploadCounters) -> FleetTotals:
    return FleetTotals([counters.to_plain() for counters in counted], [])


def dialled(first_dial_s: float | None, last_up_s: float | None) -> UploadCounters:
    counters = UploadCounters()
    counters.first_dial_s, counters.last_up_s = first_dial_s, last_up_s
    return counters


@pytest.mark.parametrize(
    ("times_s", "seconds"),
    [
        ([(10.0, 12.0)], 2.0),
        ([(10.5, 12.0), (10.0, 11.0)], 2.0),  # from whoever began first to whoever was last
        ([(10.0, 11.0), (10.5, 14.0)], 4.0),
        ([(10.0, 12.0), (None, None)], 2.0),  # one that had no device to dial
        ([(10.0, 12.0), (9.0, None)], 3.0),
        ([(10.0, None)], 0.0),
        ([], 0.0),
    ],
)
def test_connecting_lasts_from_the_first_dial_to_the_last_connection(times_s, seconds):
    assert totals(*(dialled(*one) for one in times_s)).connecting_s() == seconds


def test_connections_a_second_are_all_over_that_time():
    connects = outcome_of(FleetTotals([], []), connects=600, connecting_s=2.5)["connects"]
    assert (connects["devices"], connects["seconds"], connects["per_s"]) == (600, 2.5, 240.0)


def test_connections_that_never_were_are_no_rate():
    assert outcome_of(FleetTotals([], []))["connects"]["per_s"] == 0


GROWS = {"cloud": {"mib_per_hour": 40.0, "error": 1.0, "verdict": "grows"}}
FLAT = {"cloud": {"mib_per_hour": 4.0, "error": 1.0, "verdict": "flat"}}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"lost": 1}, "1 lost, 0 duplicated"),
        ({"duplicated": 2}, "0 lost, 2 duplicated"),
        ({"sum_matches": False}, "sum is not that"),
        ({"drift": GROWS}, "memory of cloud grows by 40.0 MiB"),
    ],
)
def test_a_fault_is_named(found, said):
    [line] = faults(result() | found)
    assert said in line


@pytest.mark.parametrize(
    "found",
    [{}, {"sum_matches": None}, {"sum_matches": True}, {"drift": FLAT}],
)
def test_a_sound_result_has_none(found):
    assert not list(faults(result() | found))


MIB = 1 << 20


def told(cpu_s: float, rss_mib: int = 50, peak_mib: int | None = None, started_s: float = 7.0):
    return ProcessFigures(
        cpu_s, rss_mib * MIB, None if peak_mib is None else peak_mib * MIB, started_s
    )


@pytest.fixture
def clock(monkeypatch):
    """Looks are two seconds apart."""
    now_s = iter(range(100, 1000, 2))
    monkeypatch.setattr("edgeveil_lab.load.processes.time.monotonic", lambda: next(now_s))


def watching(*answers: ProcessFigures | OSError) -> ProcessWatch:
    """A watch that has looked at `proxy` as often as there are answers."""
    watch, left = ProcessWatch(), list(answers)

    def read() -> ProcessFigures:
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


def test_the_share_of_a_core_is_known_from_the_second_look_on(clock):
    assert watching(told(40.0)).percent() == {}
    assert watching(told(40.0), told(41.0)).percent() == {"proxy": 50.0}


@pytest.mark.parametrize(
    ("looks", "peak_mib"),
    [
        ([told(1, 50, 300), told(2, 60, 300)], 60),  # 300 was before the test
        ([told(1, 50, 300), told(2, 60, 310)], 310),
        ([told(1, 50, 300), told(2, 90, 300), told(3, 60, 300)], 90),
        ([told(1, 50), told(2, 60)], 60),  # no mark is told: the most that was seen
        ([told(1, 50, 300), told(1, 40, 80, started_s=9.0)], 80),  # a new process, a new mark
    ],
)
def test_the_peak_is_that_of_the_test(looks, peak_mib):
    assert watching(*looks).peak_rss_bytes() == {"proxy": peak_mib * MIB}


def test_a_process_that_starts_anew_goes_on_where_it_ended(clock):
    watch = watching(told(40.0), told(43.0), told(1.0, started_s=9.0), told(1.5, started_s=9.0))
    assert watch.cpu_s() == {"proxy": 44.5}
    assert watch.percent() == {"proxy": 25.0}


def test_who_does_not_answer_now_has_no_processor_time_now():
    watch = watching(told(40.0, 50), OSError("timed out"))
    assert (watch.cpu_s(), watch.troubles()) == ({}, {"proxy": "timed out"})
    assert watch.peak_rss_bytes() == {"proxy": 50 * MIB}


def test_what_was_never_told_is_null_and_said(tmp_path):
    marks = [({"cloud": 1.0}, 0.0), ({"cloud": 2.0}, 20.0), ({"cloud": 2.5}, 40.0)]
    watch = watching(OSError("Connection refused"))
    watch.add_read("cloud", lambda: told(2.5, 50))
    found = outcome_of(watch=watch, marks=marks)
    assert found["processes"]["proxy"] == {
        "cpu_s": None,
        "cpu_percent": None,
        "peak_rss_bytes": None,
    }
    assert found["peak_rss_bytes"]["proxy"] is found["cpu_ms_per_upload"]["proxy"] is None
    assert found["processes"]["cloud"]["cpu_s"] == 0.5
    assert found["cpu_ms_per_upload"]["cloud"] == 100.0
    [warning] = [line for line in warnings(found) if "proxy" in line]
    assert warning.endswith("are not known in full: Connection refused")
    out = io.StringIO()
    show_result(Console(file=out, width=100), found)
    [row] = [line.split() for line in out.getvalue().splitlines() if line.startswith("proxy")]
    assert row == ["proxy", "–", "–", "–", "–"]
    write_load_report(found, tmp_path / "load.html")
    assert "<td>proxy</td><td>–</td><td>–</td>" in (tmp_path / "load.html").read_text()


@pytest.mark.parametrize("silent", [0, 2])
def test_costs_need_both_ends(silent):
    marks = [({"proxy": 1.0 * n} if n - 1 != silent else {}, 20.0 * n) for n in range(4)]
    watch = watching(told(3.0), OSError("timed out"))
    found = outcome_of(watch=watch, marks=marks)
    assert found["processes"]["proxy"]["cpu_s"] is None
    assert found["processes"]["proxy"]["peak_rss_bytes"] == 50 * MIB
    assert any("proxy are not known in full: timed out" in line for line in found["warnings"])


def test_one_look_that_failed_between_is_no_matter():
    marks = [({"proxy": 1.0 * n}, 20.0 * n) for n in range(3)]
    watch = watching(told(1.0), OSError("timed out"), told(2.0))
    found = outcome_of(watch=watch, marks=marks)
    assert (found["processes"]["proxy"]["cpu_s"], found["warnings"]) == (1.0, [])
