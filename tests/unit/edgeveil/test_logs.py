"""Log lines: named fields alone, one line each, no traceback, whatever is logged."""

from __future__ import annotations

import contextvars
import json
import logging
from collections.abc import Iterator

import pytest

from edgeveil import logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("edgeveil")
    handlers, level, own = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level = handlers, level
    ours.setLevel(own)


def written(capsys: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_json_lines_hold_the_named_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("info", "json")
    logging.getLogger("edgeveil.cloud").warning("refused", extra={"reason": "forged", "total": 3})
    (line,) = written(capsys)
    said = json.loads(line)
    assert said.pop("time").endswith("+00:00")
    assert said == {
        "level": "warning",
        "process": "edgeveil.cloud",
        "event": "refused",
        "job": None,
        "round": None,
        "reason": "forged",
        "total": 3,
    }


@pytest.mark.parametrize("form", ["json", "text"])
def test_an_exception_leaves_neither_its_text_nor_its_place(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.setup("debug", form)
    try:
        raise ValueError("record 17 is [0.25, 0.75]")
    except ValueError:
        logging.getLogger("edgeveil.edge").exception("work failed")
    (line,) = written(capsys)
    assert "work failed" in line
    assert "0.25" not in line
    assert "Traceback" not in line


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_value_with_line_ends_cannot_begin_a_line_of_its_own(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.setup("info", form)
    forged = "closed\n12:00:00 info edgeveil.edge: all is well\r\x1b[2K"
    logging.getLogger("edgeveil.edge").warning("upload_refused", extra={"why": forged})
    (line,) = written(capsys)
    assert "all is well" in line
    assert "\x1b" not in line


def test_lines_of_a_followed_place_name_its_job_and_round(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.setup("info", "json")
    log, place = logging.getLogger("edgeveil.edge"), logs.Place()

    def box() -> None:
        logs.follow(place)
        place.job, place.round = "a1b2", 3
        log.info("one")
        log.info("two", extra={"round": 4})  # a line's own field tells better

    contextvars.copy_context().run(box)
    log.info("three")
    lines = [json.loads(line) for line in written(capsys)]
    found = [(line["event"], line["job"], line["round"]) for line in lines]
    assert found == [("one", "a1b2", 3), ("two", "a1b2", 4), ("three", None, None)]
