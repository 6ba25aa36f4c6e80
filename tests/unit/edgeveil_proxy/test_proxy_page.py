"""A proxy's process: what it tells of its state and to whom, how it ends, what it carries."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from edgeveil.config.proxy import ProxySite
from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment
from edgeveil.errors import BrokerError
from edgeveil.protocol import effects as fx
from edgeveil.transport.health import Health
from edgeveil.transport.http import Request
from edgeveil.transport.listener import ListenAt
from edgeveil.transport.process import make_signing_key
from edgeveil.transport.runtime import Refusals
from edgeveil_proxy.main import AloneInCell
from edgeveil_proxy.page import ProxyPage
from edgeveil_proxy.role import LOG, build

HERE = {"host": "127.0.0.1:8702"}
FAR = {"host": "proxy.example"}
LISTS = {"refused_by_device", "offline"}


def made(folder, host="127.0.0.1", **site):
    """The page of a proxy that refused a device's message."""
    SigningKey.generate().public().save(folder / "cloud.pub")
    plain = {"edge_broker": {"url": "mqtt://127.0.0.1:1"}, "state_dir": folder / "proxy"}
    given = {**plain, "cloud_broker": plain["edge_broker"], "cloud_key_file": folder / "cloud.pub"}
    proxy_site = ProxySite.model_validate({**given, **site})
    runtime = SimpleNamespace(post=lambda _event: None, refusals=Refusals(LOG))
    make_signing_key(folder / "proxy", "proxy")
    proxy = build(proxy_site, link=lambda _role: runtime)
    proxy.conduct.refused(fx.DeviceAddress("0123456789abcdef"), "malformed")
    runtime.refusals.counts["malformed"] = 1
    state = {"connected": True, "connections": 1, "unacknowledged": 0}
    links = {hop: SimpleNamespace(**state, bytes=Counter()) for hop in ("edge", "cloud")}
    health = Health({"store": lambda: False}, [lambda: ["plain_http"]])
    parts = {"site": proxy_site, "at": ListenAt(host), "proxy": proxy, "runtime": runtime}
    return ProxyPage(SimpleNamespace(**parts, health=health, links=links, claims=None))


def told(page, headers=HERE):
    async def ask():
        request = Request("GET", "/", headers)
        status, stream = await page.status(request), await page.events(request)
        event = await anext(stream.events)
        return json.loads(status.body), json.loads(event.removeprefix(b"data: "))

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("host", "headers", "named"),
    [
        ("127.0.0.1", HERE, True),
        ("127.0.0.1", FAR, False),  # another site's page in a browser here, or a relay before it
        ("0.0.0.0", HERE, False),
    ],
)
def test_devices_are_named_to_this_machine_alone(tmp_path, host, headers, named):
    for shown in told(made(tmp_path, host), headers):
        assert (shown.keys() >= LISTS) is named
        assert ("0123456789abcdef" in json.dumps(shown)) is named
        assert shown["refused"]["malformed"] == 1


def test_a_fleet_of_which_too_much_is_offline_or_declines_is_not_well(tmp_path):
    page = made(tmp_path)
    proxy, context = page._process.proxy, page._process.proxy.machine._context
    boxes = [Enrolment.make(SigningKey.generate(), OpeningKey.generate()) for _ in range(4)]
    proxy.registry.admit_many(boxes)
    first, second, *others = names = [box.device_id for box in boxes]
    assert (proxy.warnings(), told(page)[0]["offline"]) == ([], None)  # not known yet
    context.presence_known = True

    def warned(*online):
        context.online.clear()
        context.online.update(online)
        return proxy.warnings()

    assert warned(first, second) == ["fleet_offline"]  # half of it is too much by default
    assert warned(first, second, others[0]) == []
    proxy.conduct.refusal(fx.DeviceAddress(first), b"")
    assert warned(second) == ["fleet_offline"]
    away = told(page)[0]["offline"]
    assert [one["device"] for one in away] == [*sorted(others), first]
    assert [one["seen_at"] is None for one in away] == [True, True, False]
    proxy.site.limits.__dict__["max_offline_share"] = 0.0
    assert warned(*names) == []  # none of it is offline
    counts = {"round": 4, "uploads": 1, "declined": 2, "causes": {"budget": 2}, "selected": 3}
    proxy.host.report(fx.Report("answered", counts))
    assert warned(second) == ["fleet_offline", "rounds_declined"]


class Link:
    def __init__(self, fails):
        self._fails = fails

    def subscribe(self, topics): ...

    async def run_forever(self):
        if self._fails:
            raise BrokerError("the broker is gone")
        await asyncio.Event().wait()


def no_key():
    raise OSError("the disk of the state folder is gone")


@pytest.mark.parametrize(("fails", "wanted"), [(True, BrokerError), (False, OSError)])
async def test_the_watch_over_a_cells_one_proxy_ends_where_it_can_watch_no_more(
    tmp_path, fails, wanted
):
    broker = {"url": "mqtt://127.0.0.1:1"}
    files = {"cloud_key_file": tmp_path / "cloud.pub", "state_dir": tmp_path / "state"}
    site = ProxySite.model_validate({"edge_broker": broker, "cloud_broker": broker, **files})
    watch = AloneInCell(site, no_key)
    watch._link = Link(fails)
    if not fails:  # connected, so that it tells of itself
        watch._up.set()
    with pytest.raises(wanted, match="is gone"):
        await watch.run()


MODULES, RESIDENT_KIB = 60, 55 << 10
CODE = """
import sys
from pathlib import Path
from edgeveil.config.site_files import load_site
load_site(Path("configs/proxy.yaml"))
import edgeveil_proxy.main
print(*sys.modules)
for line in Path("/proc/self/status").read_text().splitlines():
    if line.startswith("VmRSS:"):
        print(line.split()[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_proxy_is_small():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    modules, resident_kib = done.stdout.splitlines()
    tops = [name.partition(".")[0] for name in modules.split()]
    assert sum(top.startswith("edgeveil") for top in tops) <= MODULES
    assert not {"numpy", "torch", "sklearn", "onnx", "onnxruntime", "aiohttp"} & set(tops)
    assert int(resident_kib) <= RESIDENT_KIB
