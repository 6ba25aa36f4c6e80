"""A memory transport in which a process can end at every effect that it makes."""

from __future__ import annotations

from collections import Counter

from fl_core.protocol import effects as fx
from fl_core.transport.memory import Due, MemoryNet, Node


class Died(BaseException):
    """The node's process ended. (No Exception: work's own errors are those.)"""

    def __init__(self, node: Node) -> None:
        self.node, self.host = node, node.host


class CrashNet(MemoryNet):
    """Effects run as in a process: stores together, before all that follows the first of them.

    `deaths` says at which of its boundaries a node's process ends: number k is right after its
    k-th effect, which is right before the next one. A process that died counts on from there.
    """

    deaths: frozenset[tuple[fx.Address, int]] = frozenset()

    @property
    def passed(self) -> Counter[fx.Address]:
        """Boundaries so far, by node."""
        return self.__dict__.setdefault("_passed", Counter())

    def boundary(self, node: Node) -> None:
        """One more effect is done; the process may end here."""
        self.passed[node.address] += 1
        if (node.address, self.passed[node.address]) in self.deaths:
            raise Died(node)

    def forget(self, node: Node) -> None:
        """What was on its way to the process is lost with it: its session starts clean."""
        node.timers.clear()
        self._queue = [entry for entry in self._queue if entry[2] is not node]

    def _step(self, node: Node, event: fx.Event | Due) -> None:
        assert not isinstance(event, Due)
        effects = node.machine.handle(event, self.now_s)
        stores = [effect for effect in effects if isinstance(effect, fx.Store)]
        first = effects.index(stores[0]) if stores else len(effects)
        for effect in effects[:first]:
            self._execute(node, effect)
            self.boundary(node)
        if stores:
            with node.host.together():
                for effect in stores:
                    self._execute(node, effect)
                    self.boundary(node)
        for effect in effects[first:]:
            if not isinstance(effect, fx.Store):
                self._execute(node, effect)
                self.boundary(node)
