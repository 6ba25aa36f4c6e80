"""Log lines: named fields alone, one line each, no traceback, whatever is logged."""

import json
import logging

import pytest

from edgeveil import logs


@pytest.fixture(autouse=True)
def _restored():
    root, ours = logging.getLogger(), logging.getLogger("edgeveil")
    handlers, level, own = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level = handlers, level
    ours.setLevel(own)


def written(capsys):
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_json_lines_hold_the_named_fields(capsys):
    logs.setup("info", "json")
    logging.getLogger("edgeveil.cloud").warning("refused", extra={"reason": "forged", "total": 3})
    line = json.loads(written(capsys)[0])
    assert line.pop("time").endswith("+00:00")
    own = {"reason": "forged", "total": 3, "job": None, "round": None}
    assert line == {"level": "warning", "process": "edgeveil.cloud", "event": "refused", **own}


@pytest.mark.parametrize("form", ["json", "text"])
def test_an_error_is_one_line_without_its_text_and_no_value_begins_another(form, capsys):
    logs.setup("debug", form)
    forged = "closed\n12:00:00 info edgeveil.edge: all is well\r\x1b[2K"
    try:
        raise ValueError("record 17 is [0.25, 0.75]")
    except ValueError:
        logging.getLogger("edgeveil.edge").exception("work failed", extra={"why": forged})
    (line,) = written(capsys)
    assert "work failed" in line and "all is well" in line
    assert not any(bad in line for bad in ("0.25", "Traceback", "\x1b"))
