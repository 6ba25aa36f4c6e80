"""A cluster of three broker nodes, as processes that end with the tests."""

import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod

from edgeveil_tools.site import broker_tied
from edgeveil_tools.site.brokers import free_ports

NODES = 3
_READY_S = 90.0
_ANSWER_S = 5.0
_ACCEPTED = bytes([0x20, 2, 0, 0])  # CONNACK of MQTT 3.1.1


class BrokerCluster(ABC):
    """Nodes 0 to 2 with files in `folder`; `users` maps side -> user -> password."""

    def __init__(self, folder, users, ports):
        """Reserve `ports` ports for each node, MQTT's first."""
        self.folder, self.users = folder, users
        every = free_ports(NODES * ports)
        self.ports = [every[node * ports : (node + 1) * ports] for node in range(NODES)]
        self._nodes = {}

    @abstractmethod
    def user_name(self, side, user):
        """Return the login name of a side's user."""

    @abstractmethod
    def command(self, node):
        """Return the command that runs the node, after its files are written."""

    def environment(self, _node):
        return {}

    @property
    def urls(self):
        return [f"mqtt://127.0.0.1:{ports[0]}" for ports in self.ports]

    def start(self):
        """Start all nodes; returns once each accepts clients of both sides."""
        self.folder.mkdir(parents=True)
        for node in range(NODES):
            self.start_node(node)
        self.wait_ready()

    def start_node(self, node):
        command = self.command(node)
        self._nodes[node] = self.spawn(f"{node}.log", command, self.environment(node))

    def kill(self, node):
        end(self._nodes.pop(node))

    def stop(self):
        for node in list(self._nodes):
            self.kill(node)

    def wait_ready(self):
        """Wait until each running node has accepted a client of each side."""
        end_s = time.monotonic() + _READY_S
        waiting = {(node, side) for node in self._nodes for side in self.users}
        while waiting := {(node, side) for node, side in waiting if not self._takes(node, side)}:
            if time.monotonic() > end_s:
                raise AssertionError(f"the cluster does not take clients: {sorted(waiting)}")
            time.sleep(0.2)

    def spawn(self, log, command, environment):
        with (self.folder / log).open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", broker_tied.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env={**os.environ, **environment},
            )

    def _takes(self, node, side):
        user, password = next(iter(self.users[side].items()))
        connect = _connect(f"probe-{side}-{node}", self.user_name(side, user), password)
        try:
            address = ("127.0.0.1", self.ports[node][0])
            with socket.create_connection(address, _ANSWER_S) as probe:
                probe.sendall(connect)
                return probe.recv(4) == _ACCEPTED
        except OSError:
            return False


def end(process):
    process.send_signal(signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _connect(client_id, user, password):
    """Return a CONNECT of MQTT 3.1.1: a clean session with user name and password."""
    texts = [text.encode() for text in (client_id, user, password)]
    body = b"\x00\x04MQTT\x04\xc2\x00\x3c"
    body += b"".join(len(text).to_bytes(2, "big") + text for text in texts)
    return bytes([0x10, len(body)]) + body
