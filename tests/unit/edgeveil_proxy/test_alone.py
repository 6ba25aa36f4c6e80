"""The watch over a cell's one proxy ends with an error where it can watch no more."""

import asyncio

import pytest

from edgeveil.config.proxy import ProxySite
from edgeveil.errors import BrokerError
from edgeveil_proxy.main import AloneInCell


class Link:
    """A connection to no broker, whose work goes on, or fails."""

    def __init__(self, fails):
        self._fails = fails

    def subscribe(self, topics):
        """Subscribed."""

    async def run_forever(self):
        """Until cancelled."""
        if self._fails:
            raise BrokerError("the broker is gone")
        await asyncio.Event().wait()


def no_key():
    raise OSError("the disk of the state folder is gone")


@pytest.mark.parametrize(("fails", "wanted"), [(True, BrokerError), (False, OSError)])
def test_what_its_work_fails_with_ends_the_process(tmp_path, fails, wanted):
    async def play():
        broker = {"url": "mqtt://127.0.0.1:1"}
        files = {"cloud_key_file": tmp_path / "cloud.pub", "state_dir": tmp_path / "state"}
        site = ProxySite.model_validate({"edge_broker": broker, "cloud_broker": broker, **files})
        watch = AloneInCell(site, no_key)
        watch._link = Link(fails)
        if not fails:  # connected, so that it tells of itself
            watch._up.set()
        with pytest.raises(wanted, match="is gone"):
            await watch.run()

    asyncio.run(play())
