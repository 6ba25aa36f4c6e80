"""Two cells of one plan: real processes at one shared broker, and at a broker for each."""

import json
import shutil
import urllib.request

import pytest

from edgeveil_tools.site.brokers import free_ports
from edgeveil_tools.site.fleet_spec import FLEET_FILE
from tests.e2e.test_fleet import BOXES, PlannedFleet
from tests.kits.commands import changed
from tests.kits.live_site import wait_for

NORTH, SOUTH = BOXES[::2], BOXES[1::2]


class CellFleet(PlannedFleet):
    def __init__(self, folder, *, own_brokers):
        own, *http = free_ports(3)
        self.http_of = dict(zip(("north", "south"), http, strict=True))
        plan = self.planned(folder, "--cells", "north,south")
        fleet = plan["fleet"]
        for cell, port in self.http_of.items():
            fleet["cells"][cell] = {"proxy": {"http": {"port": port}}}
        brokers = ["broker-edge", "broker-cloud"]
        if own_brokers:
            listen = {"listen": f"127.0.0.1:{own}", "public": f"localhost:{own}"}
            fleet["cells"]["south"]["edge_broker"] = listen
            brokers.append("broker-edge-south")
        self.write(plan)
        self.command("apply")
        self.install(*brokers, "proxy-north", "proxy-south", *BOXES)
        self.start(*brokers)
        self.wait_ready(*brokers)
        self.start("proxy-north", "proxy-south", *BOXES)
        self.wait_ready("proxy-north", "proxy-south", *BOXES)

    def move(self, box, cell):
        with changed(self.site / FLEET_FILE) as plan:
            plan["fleet"]["devices"].setdefault("list", []).append({"name": box, "cell": cell})
        self.command("apply")

    def status(self, cell):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_of[cell]}/status") as answer:
            return json.load(answer)

    def wait_online(self, north, south):
        wanted = {"north": north, "south": south}
        wait_for(
            lambda: {cell: self.status(cell)["online"] for cell in wanted} == wanted,
            f"{wanted} online",
        )

    def claims_cell(self, name, cell):
        with changed(self.places / name / "edgeveil.yaml") as said:
            next(iter(said.values()))["cell"] = cell

    def ends(self, name):
        wait_for(lambda: self.processes[name].poll() is not None, f"the end of {name}")
        assert self.processes[name].returncode == 2
        assert "Traceback" not in self.log(name)
        return self.log(name)


@pytest.fixture(params=[pytest.param(False, marks=pytest.mark.slow), True])
def fleet(request, tmp_path):
    found = CellFleet(tmp_path, own_brokers=request.param)
    yield found
    found.end()


def test_a_device_is_in_one_cell_and_moves_to_another(fleet):
    fleet.wait_online(2, 2)
    box, state = NORTH[0], fleet.places / NORTH[0] / "state"
    identity = (state / "identity.key").read_bytes()
    lost = fleet.log("broker-edge").count("started anew")
    fleet.move(box, "south")
    assert (fleet.site / "bundles" / "cloud" / "moves.jsonl").exists()
    moved = [path.name for path in (fleet.site / "bundles").iterdir() if path.name != "cloud"]
    assert SOUTH[0] in moved, "its bundle is the one of before"
    own_brokers = (fleet.places / "broker-edge-south").exists()
    fleet.install("proxy-south", "proxy-north", *(["broker-edge"] if own_brokers else []))
    wait_for(lambda: fleet.status("north")["enrolled"] == 1, "the old cell's drop")
    wait_for(lambda: fleet.status("south")["enrolled"] == 3, "the new cell's admission")
    if own_brokers:
        wait_for(lambda: fleet.log("broker-edge").count("started anew") > lost, "the revocation")
    fleet.install(box)
    fleet.restart(box)
    fleet.wait_online(1, 3)
    assert (state / "identity.key").read_bytes() == identity
    for name in ("proxy-north", "proxy-south", *BOXES):
        assert "Traceback" not in fleet.log(name)


@pytest.mark.parametrize("fleet", [False], indirect=True)
def test_a_second_proxy_of_a_cell_and_who_claims_anothers_are_refused(fleet):
    fleet.wait_online(2, 2)
    fleet.claims_cell(NORTH[0], "south")
    fleet.restart(NORTH[0])
    wait_for(lambda: fleet.status("south")["refused"].get("unknown_signer", 0) > 0, "its refusal")
    assert fleet.status("south")["online"] == 2
    fleet.claims_cell(NORTH[1], "east")
    fleet.restart(NORTH[1])
    assert "the root names no cell 'east'" in fleet.ends(NORTH[1])
    second = fleet.places / "proxy-second"
    sockets = shutil.ignore_patterns("*.sock")
    shutil.copytree(fleet.places / "proxy-north", second, ignore=sockets)
    with changed(second / "edgeveil.yaml") as said:
        said["proxy"]["http"]["port"] = free_ports(1)[0]
    fleet.start("proxy-second")
    assert "another process runs as the proxy of cell 'north'" in fleet.ends("proxy-north")
    assert fleet.processes["proxy-second"].poll() is None
    fleet.claims_cell("proxy-second", "south")
    fleet.restart("proxy-second")
    assert "its site file has 'south'" in fleet.ends("proxy-second")
    assert fleet.status("south")["online"] == 2, "the other cell goes on"
