"""The pages of proxy and device in a real browser: what a person sees, and what they do there."""

import asyncio
import json
import threading
from contextlib import contextmanager

import pytest

from edgeveil.config.edge import LoopbackHttp
from edgeveil.crypto.keys import SigningKey
from edgeveil.data.schema import DataSchema, schema_metadata
from edgeveil.parts.models.heads import described
from edgeveil.privacy.events import ClaimedEvent
from edgeveil.privacy.laplace_mechanism import softmax_event
from edgeveil.privacy.ledger import LEDGER_FILE
from edgeveil.privacy.policy import JobRequest, Limits
from edgeveil.protocol import effects as fx
from edgeveil.transport.http_server import HttpServer
from edgeveil_edge import page as device_page
from edgeveil_edge.identity import DeviceIdentity
from tests.kits.browser import DESK, PHONE, browser
from tests.unit.edgeveil_edge.edge_kit import final_model, site
from tests.unit.edgeveil_edge.test_conditions import WELL
from tests.unit.edgeveil_edge.test_edge_control import running
from tests.unit.edgeveil_proxy.test_proxy_page import made

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror='window.__hit=1'><script>window.__hit=1</script>"
SHORT = "'\"><svg onload=window.__hit=1>"


def sound(shown):
    for size in (PHONE, DESK):
        shown.resize(size)
        assert shown.barriers() == []
        assert shown.small_text() == []
        assert shown.cut_off() == []
    assert shown.wrong() == []
    assert not shown.run("return window.__hit")


def click(shown, selector):
    shown.run("document.querySelector(arguments[0]).click()", selector)


def text_of(shown, selector):
    return str(shown.run("return document.querySelector(arguments[0]).innerText", selector))


def test_an_owner_logs_in_pauses_and_goes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(device_page, "LOOK_S", 0.1)
    for peer in ("cloud", "proxy"):
        SigningKey.generate().public().save(tmp_path / f"{peer}.pub")
    DeviceIdentity.load_or_create(tmp_path)
    page = LoopbackHttp.model_construct(host="127.0.0.1", port=0)
    policy = {"min_devices": 3, "accept_unproven": True, "accept_unprotected": True}
    own = site(tmp_path, name=SHORT, policy=policy).model_copy(update={"page": page})
    hostile, plain = "ab" * 16, "cd" * 16

    def prepare(process):
        process.device.store.put_job(
            bytes.fromhex(hostile), json.dumps({"job": HOSTILE}).encode(), b""
        )
        claim = ClaimedEvent(what=HOSTILE, unit="record", claimed_epsilon=1.5)
        limits = Limits(10, 50, 1e-4, 100, accept_unproven=True)
        for job, event in ((plain, softmax_event(10, 4.0)), (hostile, claim)):
            process.device.ledger.open_job(JobRequest(job, 1e-5, (event,) * 3), limits)
            process.device.ledger.commit(job, 1, [event], b"noised")
        process.device.ledger.close_job(plain)
        columns = tuple({"name": name, "number": (0, 9)} for name in ("a", "b", "c", HOSTILE))
        label = {"column": "what", "classes": (HOSTILE, SHORT, "cow")}
        schema = DataSchema.model_validate(
            {"origin": "public", "columns": columns, "label": label}, strict=True
        )
        for release in (final_model(), described(final_model(), schema_metadata(schema))):
            process.device.host.releases.install("boxed", release, {"job_id": plain})

    def look(process):
        prepare(process)
        url = process._page._server.url
        with browser() as shown:
            shown.open(url, PHONE, dark=True)
            shown.wait("!document.getElementById('login').hidden")
            sound(shown)
            assert own.name not in shown.text
            shown.open(process._page.way_in(), PHONE, dark=True)
            shown.wait("!document.getElementById('shown').hidden")
            assert text_of(shown, "h1#title") == SHORT
            jobs = text_of(shown, "#jobs")
            assert HOSTILE[:64] in jobs and "no proven guarantee" in jobs
            click(shown, "details.job summary")
            assert HOSTILE in text_of(shown, "details.job[open] table")
            sound(shown)

            pause = shown.driver.find_element("id", "pause")
            pause.send_keys(" ")  # by keyboard
            shown.wait("document.querySelector('#state .badge').innerText === 'paused'")
            assert process.presence.paused
            assert shown.run("return document.activeElement.id") == "resume"
            click(shown, "#resume")
            shown.wait("document.querySelector('#state .badge').innerText === 'running'")
            assert shown.run("return document.querySelector('details.job').open")  # as it was left

            click(shown, "#rollback")
            assert text_of(shown, "#rollback") == "Confirm: return to 0001-boxed"
            click(shown, "#rollback")
            shown.wait("document.querySelector('#release dd').innerText === '0001-boxed'")
            (own.state_dir / LEDGER_FILE).with_suffix(".head").unlink()
            shown.wait("document.getElementById('problems').innerText.includes('was altered')")
            click(shown, "#logout")
            shown.wait("!document.getElementById('login').hidden")
            assert own.name not in shown.text

    running(own, WELL, look)


@contextmanager
def served(page):
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    there = lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(20)  # noqa: E731
    server = there(HttpServer(page.routes()).start())
    try:
        yield server.url
    finally:
        there(server.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


def test_a_proxys_operator_sees_hostile_ids_as_text(tmp_path):
    page = made(tmp_path)
    for _ in range(1002):
        page._process.proxy.conduct.refused(fx.DeviceAddress(HOSTILE), "malformed")
    with served(page) as url, browser() as shown:
        shown.open(url, PHONE)
        shown.wait("!document.getElementById('shown').hidden")
        devices = text_of(shown, "#devices")
        assert HOSTILE in devices and "cooling down" in devices and "malformed 1002" in devices
        assert "degraded" in text_of(shown, "#health")
        sound(shown)
