"""A proxy's machine on its real host and spool: what outlives a restart is what is on disk."""

from protocol_kit import CLOUD_KEY, PACKET_BYTES, PROXY, FakeRegistry
from proxy_bench import FLEET

from edgeveil.errors import EdgeVeilError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import PeerKeys
from edgeveil.protocol.proxy import ProxyMachine
from edgeveil.protocol.proxy_rounds import ProxySettings, StreamUploads, SumMasks
from edgeveil_proxy.role import ProxyHost
from edgeveil_proxy.spool import Spool


def backwards(places):
    places.reverse()


class RealProxy(ProxyMachine):
    """A machine whose host does its work at once, in a folder; `hold` leaves sums undone, `slow`
    the lots of a stream, which stand in `waiting` then.
    """

    def __init__(self, folder, **settings):
        self.folder, self.hold, self.slow = folder, False, False
        self.settings_given = settings
        self.waiting = []
        self.spool = Spool(folder / "spool.sqlite")
        self.host = ProxyHost(self.spool, backwards)
        registry = FakeRegistry({m.id: m.key for m in FLEET})
        plain = {"packet_bytes": PACKET_BYTES, "push_bytes": 1 << 20}
        bounds = ProxySettings(**(plain | settings))
        keys = PeerKeys.pinned(cloud=CLOUD_KEY)
        super().__init__(PROXY, keys, registry, self.spool.load(), bounds)

    def handle(self, event, now_s):
        out = []
        for effect in super().handle(event, now_s):
            out.append(effect)
            if isinstance(effect, fx.Persist):
                self.host.store(effect.item)
            if not isinstance(effect, fx.Work):
                continue
            if self.slow and isinstance(effect.task, StreamUploads):
                self.waiting.append(effect.task)
            elif not (self.hold and isinstance(effect.task, SumMasks)):
                out += self.work(effect.task)
        return out

    def work(self, task):
        """Do a task now; an outcome that is an error is as the process would tell it."""
        try:
            result = self.host.perform(task)
        except EdgeVeilError as error:
            result = fx.WorkFailed(str(error))
        return self.handle(fx.WorkDone(task, result), 0.0)

    def restarted(self):
        """A new process on the same files; the old one never closed them."""
        return RealProxy(self.folder, **self.settings_given)
