"""A secure job over two cells, each with a proxy of its own, one of whose devices masks wrongly."""

from __future__ import annotations

import pytest

from edgeveil.protocol import effects as fx
from edgeveil.protocol.proxy_rounds import MISFIT
from edgeveil.transport.memory import MemoryNet, no_faults
from edgeveil.transport.process import make_signing_key
from edgeveil_proxy.registry import REGISTRY_FILE, Registry
from edgeveil_proxy.role import build
from tests.kits.fleet import Fleet
from tests.sim.test_secure_sums import books, check_exact, completed, job
from tests.sim.test_wrong_masks import WrongMasks

__all__ = ["books"]
pytestmark = pytest.mark.slow

NORTH, SOUTH = CELLS = ("north", "south")


class CellNet(MemoryNet):
    """Frames of devices go to the proxy of their cell, and that proxy's to its own devices."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.cell_of = {}  # by a device's id
        self.faults = self._within_cells

    def connect(self, node):
        super().connect(node)
        if isinstance(node.address, fx.CloudAddress):
            for cell in CELLS:
                self.post(node, fx.PeerConnected(fx.ProxyAddress(cell)))

    def _within_cells(self, sender, to, frame):
        if isinstance(sender, fx.ProxyAddress) and isinstance(to, fx.DeviceAddress):
            return no_faults(sender, to, frame) if self.cell_of[to.id] == sender.cell else []
        return no_faults(sender, to, frame)

    def _send(self, sender, to, frame):
        if isinstance(sender, fx.DeviceAddress):
            to = fx.ProxyAddress(self.cell_of[sender.id])
        super()._send(sender, to, frame)


class CellFleet(Fleet):
    net: CellNet

    def __init__(self, folder, devices):
        self._states = {cell: folder / "state" / f"proxy-{cell}" for cell in CELLS}
        self.proxies = {}
        for state_dir in self._states.values():
            make_signing_key(state_dir, "proxy")
        cells = tuple({"name": cell, "proxy_key_file": self._key(cell)} for cell in CELLS)
        super().__init__(folder, devices, cloud={"cells": cells}, transport=CellNet)

    def start_device(self, number):
        cell = CELLS[(number - 1) % 2]
        of_it = {"cell": cell, "proxy_key_file": self._key(cell)}
        self._device_sites[number - 1] = self._device_sites[number - 1].model_copy(update=of_it)
        device = super().start_device(number)
        self.net.cell_of[device.id] = cell
        return device

    def start_proxy(self):
        for cell, state_dir in self._states.items():
            site = self._proxy_site.model_copy(update={"cell": cell, "state_dir": state_dir})
            self.proxies[cell] = build(
                site, clock=self._clock, random=self._seeds.shuffle, link=self._join
            )
        self.proxy = self.proxies[NORTH]

    def of_cell(self, cell):
        return [device for device in self.devices if self.net.cell_of[device.id] == cell]

    def _key(self, cell):
        return self._states[cell] / "proxy.pub"

    def _admit(self):
        for cell, state_dir in self._states.items():
            registry = Registry(state_dir / REGISTRY_FILE)
            registry.admit_many(one.identity.enrolment() for one in self.of_cell(cell))
            registry.close()


@pytest.mark.parametrize("cell", CELLS)
def test_a_wrong_mask_is_left_out_and_counted_in_its_cell_alone(tmp_path, books, cell):
    devices = 10
    fleet = CellFleet(tmp_path, devices)
    wrong = WrongMasks(fleet, fleet.of_cell(cell)[1], "another seed")
    done = fleet.submit(job(selection={"devices": devices}))
    records = completed(fleet, done)
    assert {(record.attempt, record.uploads) for record in records} == {(1, devices - 1)}
    check_exact(fleet, books, done)
    for name, proxy in fleet.proxies.items():
        named = {(fx.DeviceAddress(wrong.signer.name), MISFIT): len(records)}
        assert proxy.runner.blamed == (named if name == cell else {})
        assert not proxy.conduct.cooling_down
