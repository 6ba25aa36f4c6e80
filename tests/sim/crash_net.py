"""A memory transport in which a process can end at each of its effects and durable writes."""

import heapq
from collections import Counter
from contextlib import contextmanager

from edgeveil.protocol import effects as fx
from edgeveil.transport.memory import MemoryNet, no_faults


class Died(BaseException):
    """The node's process ended. (No Exception: work's own errors are those.)"""

    def __init__(self, node):
        self.node, self.host = node, node.host


class CrashNet(MemoryNet):
    """Effects run as in a process: stores together, before all that follows the first of them.

    `deaths` says at which of its boundaries a node's process ends: number k is right after its
    k-th effect (or durable write, where a fleet tells of those), which is right before the next.
    A process that was started again counts on.
    """

    def __init__(self, faults=no_faults, work_s=lambda _task: 0.01, packet_bytes=65536):
        super().__init__(faults, work_s, packet_bytes)
        self.deaths = frozenset()
        self.passed = Counter()
        self.clean_sessions = True  # else the broker keeps frames for a process that is away
        self._acting = None

    @contextmanager
    def acting(self, node):
        before, self._acting = self._acting, node
        try:
            yield
        finally:
            self._acting = before

    def boundary(self):
        node = self._acting
        if node is None:
            return
        self.passed[node.address] += 1
        if (node.address, self.passed[node.address]) in self.deaths:
            raise Died(node)

    def forget(self, node):
        node.timers.clear()
        self._queue = [entry for entry in self._queue if not self._lost(node, entry[2], entry[3])]
        heapq.heapify(self._queue)

    def _lost(self, died, place, event):
        return place is died and (self.clean_sessions or not isinstance(event, fx.MessageReceived))

    def _step(self, node, event):
        effects = node.machine.handle(event, self.now_s)
        stores = [effect for effect in effects if isinstance(effect, fx.Persist)]
        first = effects.index(stores[0]) if stores else len(effects)
        with self.acting(node):
            for effect in effects[:first]:
                self._execute(node, effect)
                self.boundary()
            if stores:
                with node.host.together():
                    for effect in stores:
                        self._execute(node, effect)
                        self.boundary()
                self.boundary()
            for effect in effects[first:]:
                if not isinstance(effect, fx.Persist):
                    self._execute(node, effect)
                    self.boundary()
