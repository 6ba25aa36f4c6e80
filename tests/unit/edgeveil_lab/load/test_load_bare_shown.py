"""What came of bare load: rates, ratios of two brokers, table, page; what is not known is None."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from edgeveil_lab.load.bare.clients import BareCounters, sent_ns, stamped
from edgeveil_lab.load.bare.command import broker_result
from edgeveil_lab.load.bare.display import BareView, figures, show_bare_result
from edgeveil_lab.load.bare.options import BareOptions
from edgeveil_lab.load.bare.report import write_bare_report
from edgeveil_lab.load.report import turns

PUB = BareOptions("pub", "mqtt://a:1883", "mqtt://b:1883", count=10, qos=1, subscribers=10)


def counted(acknowledged=1000, took_s=0.01):
    one = BareCounters(clients=40, connects=39, sent=1000, expected=1000, received=acknowledged)
    one.seconds, one.connecting_s = 10.0, 0.5
    for _ in range(acknowledged):
        one.ack(took_s, 0)
    one.series = [
        {"t_s": t_s, "connected": 20, "sent_per_s": 100.0, "acknowledged_per_s": 100.0,
         "received_per_s": 100.0, "bytes_up_per_s": 1e4, "bytes_down_per_s": 1e4}
        for t_s in (1.0, 2.0, 1.0, 2.0)
    ]  # fmt: skip
    return one


def result(options=PUB, counters=None):
    counters = counters or [counted(1000, 0.01), counted(500, 0.04)]
    brokers = [
        broker_result(options, url, version, one)
        for url, version, one in zip(options.brokers, (5, 4), counters, strict=False)
    ]
    return {
        "mode": options.mode,
        "options": {**vars(options)},
        "environment": {"cores": 2, "python": "3.11"},
        "status": "completed",
        "reason": "",
        "order": [options.brokers[at] for at in options.order],
        "brokers": brokers,
    }


def rows(found):
    return {figure.name: figure for figure in figures(found)}


def printed(found):
    out = Console(file=io.StringIO(), width=120, color_system=None)
    show_bare_result(out, found)
    return out.file.getvalue()


def test_the_ratio_is_the_firsts_over_the_seconds():
    found = rows(result())
    assert found["acknowledged a second"].cells == ("100", "50.0")
    assert found["acknowledged a second"].ratio == pytest.approx(2.0)
    assert found["until acknowledged, p50"].ratio == pytest.approx(0.25, rel=0.05)
    assert found["lost"].cells == ("0", "500")
    assert found["MQTT"].cells == ("5", "3.1.1")
    assert found["connected"].cells == ("39 of 40", "39 of 40")


def test_what_was_not_measured_is_none_and_left_out():
    conn = BareOptions("conn")
    found = result(conn, [BareCounters()])
    [one] = found["brokers"]
    assert one["connects_per_s"] is one["sent_per_s"] is one["ack_s"]["p50"] is None
    json.dumps(one, allow_nan=False)
    assert set(rows(found)) == {"MQTT", "connected", "failures"}


def test_a_figure_that_one_broker_lacks_has_no_ratio():
    found = rows(result(counters=[counted(), BareCounters()]))
    assert found["until acknowledged, p50"].ratio is None
    assert found["until acknowledged, p50"].cells[1] == "–"


def test_the_table_tells_the_order():
    shown = printed(result())
    assert "first : second" in shown and "2.00" in shown
    assert "turns: a:1883, b:1883, b:1883, a:1883" in shown


def test_what_stands_against_the_figures_is_told():
    one = counted()
    one.held_back, one.ahead = 7, 3
    one.meter.load.wall_s, one.meter.load.cpu_s = 10.0, 9.9
    shown = printed(result(counters=[one, counted()]))
    for text in ("a:1883: the generator itself used", "7 messages were not sent", "clocks"):
        assert text in shown
    assert "b:1883: the generator" not in shown


def test_a_refused_message_is_a_failure_and_no_latency():
    one = BareCounters()
    one.ack(0.1, 135)
    assert (one.acknowledged, one.ack_s.count) == (0, 0)
    assert one.failures == {"publish refused, reason 135": 1}


def test_a_payload_tells_when_it_was_sent():
    now_ns = 1_800_000_000_123_456_789
    payload = stamped(bytes(64), now_ns)
    assert (len(payload), sent_ns(payload)) == (64, now_ns)
    assert stamped(bytes(15), now_ns) == bytes(15)
    assert sent_ns(bytes(64)) is sent_ns(b"short") is None


def test_a_message_from_the_future_is_no_latency():
    one = BareCounters()
    one.receive(stamped(bytes(16), 1 << 62))
    assert (one.received, one.ahead, one.end_to_end_s.count) == (1, 1, 0)


def test_each_turn_is_a_line_of_its_own():
    assert [len(turn) for turn in turns(counted().series)] == [2, 2]
    assert list(turns([])) == []


def test_the_page_holds_both_brokers_curves(tmp_path):
    write_bare_report(result(), tmp_path / "load.html")
    page = (tmp_path / "load.html").read_text()
    for text in ("a:1883", "b:1883", "first : second", "Rates over time", "Latency percentiles"):
        assert text in page


def test_a_page_without_samples(tmp_path):
    write_bare_report(result(BareOptions("conn"), [BareCounters()]), tmp_path / "load.html")
    assert "Rates over time" not in (tmp_path / "load.html").read_text()


def test_without_a_terminal_a_line_tells_how_it_goes():
    out = Console(file=io.StringIO(), width=120, color_system=None)
    with BareView(PUB, out, lambda: 0.0) as view:
        show = view.of("mqtt://a:1883")
        for _ in range(2):  # the second comes too soon
            show({**counted().series[0], "phase": "loading", "failures": {}})
    [line] = out.file.getvalue().splitlines()
    assert "a:1883: loading: 20 of 20 connected · 100 sent/s" in line


def test_a_terminal_shows_the_newest_sample():
    out = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    view = BareView(PUB, out)
    out.print(view.picture())
    view.of("mqtt://a:1883")(
        {**counted().series[0], "phase": "loading", "failures": {"lost: x": 2}}
    )
    view.console.print(view.picture())
    assert "failed: lost: x 2" in out.file.getvalue()
