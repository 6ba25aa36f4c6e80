"""Devices of two data sets behind one proxy: each gets its own last release, however late."""

import pytest

from edgeveil.config.data import DataSource
from edgeveil.testing import DIGITS, device_sites
from tests.kits.fleet import PACKET_BYTES, small_job
from tests.kits.memory_fleet import MemoryFleet

SCORES = DataSource(name="scores", source="digits")  # the same records under another name
EACH = 4
JOB = small_job(train={"method": "fm", "rounds": 2})


class TwoDataSets(MemoryFleet):
    """Four devices hold digits, four scores; of each the first is away until `come`."""

    def __init__(self, folder):
        sites = [*device_sites(EACH, DIGITS), *device_sites(EACH, SCORES)]
        super().__init__(
            folder, sites, test_data=DIGITS, packet_bytes=PACKET_BYTES, clock=lambda: self.net.now_s
        )
        self.net.run(self.enrolled)
        self.late = {box.site.data.name: box for box in self.devices[::EACH]}
        for box in self.late.values():
            box.runner.up = False

    def release(self, data_set):
        """A job's final model, brought to the devices that are there."""
        data = JOB.data.model_copy(update={"source": data_set})
        job = self.submit(JOB.model_copy(update={"job": data_set, "data": data}))
        assert self.finish(job) == "completed"
        self.net.run(lambda: False, self.net.now_s + 5)
        release = self.store.release(job)
        assert release is not None
        return release.onnx

    def come(self):
        """Those who were away are there."""
        for box in self.late.values():
            box.runner.up = True
            self.net.connect(box.runner)
        self.net.run(lambda: False, self.net.now_s + 5)


def in_use(box):
    current = box.host.releases.current()
    return current.path.read_bytes() if current else None


@pytest.fixture
def fleet(tmp_path):
    return TwoDataSets(tmp_path)


def test_a_late_device_of_each_data_set_gets_the_last_release_of_its_own(fleet):
    models = {name: fleet.release(name) for name in ("digits", "scores")}
    assert [in_use(box) for box in fleet.late.values()] == [None, None]
    fleet.come()
    assert {name: in_use(box) for name, box in fleet.late.items()} == models
    assert {in_use(box) for box in fleet.devices[1:EACH]} == {models["digits"]}
    assert not [one for box in fleet.devices for one in box.runner.refused]
