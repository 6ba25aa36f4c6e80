"""What processes spend: of this machine, or as their pages tell it; unknown is never 0."""

from __future__ import annotations

import io
import os

import pytest
from load_kit import outcome_of
from rich.console import Console

from edgeveil_lab.load.display import show_result, warnings
from edgeveil_lab.load.processes import ProcessFigures, ProcessWatch
from edgeveil_lab.load.report import write_load_report

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
