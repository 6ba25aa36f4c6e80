"""Three nodes of NATS that form one cluster, spoken to in MQTT 3.1.1; accounts are the two sides.

Topics of one account are not seen in another, so one cluster serves as edge and cloud broker.
NATS 2.9.10: a node that comes back does not catch up with subscriptions that lasted. Once a second
one is killed, those have no majority: they hear nothing, and no connection is ended. So kill one.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from edgeveil_tools.site import broker_tied
from edgeveil_tools.site.brokers import free_ports

NODES = 3
_ELECTED_S = 60.0
_ANSWER_S = 5.0
_ACCEPTED = bytes([0x20, 2, 0, 0])  # CONNACK of MQTT 3.1.1


class NatsCluster:
    """Nodes 0 to 2, which end with the tests. `users`: side -> user -> password.

    A server's user names are of one list, so each begins with its side (`user_name`).
    """

    def __init__(self, folder: Path, users: Mapping[str, Mapping[str, str]]) -> None:
        if shutil.which("nats-server") is None:
            pytest.skip("nats-server is not installed")
        self._folder, self._users = folder, users
        ports = free_ports(3 * NODES)
        self._ports, self._mqtt_ports, self._routes = ports[:3], ports[3:6], ports[6:]
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def urls(self) -> list[str]:
        """Of all nodes, for MQTT clients."""
        return [f"mqtt://127.0.0.1:{port}" for port in self._mqtt_ports]

    def start(self) -> None:
        """All nodes; returns once every one of them takes clients of both sides."""
        self._folder.mkdir(parents=True)
        for node in range(NODES):
            self.start_node(node)
        self.wait_elected()

    def start_node(self, node: int) -> None:
        """Start it, again with what it kept on the disk; it may take a while to take clients."""
        config = self._folder / f"{node}.conf"
        config.write_text(json.dumps(self._config(node), indent=1))  # JSON is NATS's syntax too
        with (self._folder / f"{node}.log").open("ab") as log:
            self._nodes[node] = subprocess.Popen(
                [sys.executable, "-I", "-S", broker_tied.__file__, "nats-server", "-c", config],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def kill(self, node: int) -> None:
        """`kill -9`."""
        process = self._nodes.pop(node)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def stop(self) -> None:
        """All nodes that still run."""
        for node in list(self._nodes):
            self.kill(node)

    def wait_elected(self) -> None:
        """Until each node that runs has taken a client of each side."""
        end_s = time.monotonic() + _ELECTED_S
        waiting = {(node, side) for node in self._nodes for side in self._users}
        while waiting := {(node, side) for node, side in waiting if not self._takes(node, side)}:
            if time.monotonic() > end_s:
                raise AssertionError(f"the cluster does not take clients: {sorted(waiting)}")
            time.sleep(0.2)

    def _takes(self, node: int, side: str) -> bool:
        user, password = next(iter(self._users[side].items()))
        connect = _connect(f"probe-{side}-{node}", user_name(side, user), password)
        try:
            address = ("127.0.0.1", self._mqtt_ports[node])
            with socket.create_connection(address, _ANSWER_S) as probe:
                probe.sendall(connect)
                return probe.recv(4) == _ACCEPTED
        except OSError:
            return False

    def _config(self, node: int) -> dict[str, object]:
        accounts: dict[str, object] = {
            side: {
                "jetstream": "enabled",
                "users": [
                    {"user": user_name(side, user), "password": password}
                    for user, password in users.items()
                ],
            }
            for side, users in self._users.items()
        }
        return {
            "server_name": f"node-{node}",
            "listen": f"127.0.0.1:{self._ports[node]}",
            "mqtt": {"listen": f"127.0.0.1:{self._mqtt_ports[node]}"},
            "jetstream": {"store_dir": str(self._folder / f"store-{node}")},
            "cluster": {
                "name": "edgeveil",
                "listen": f"127.0.0.1:{self._routes[node]}",
                "routes": [f"nats://127.0.0.1:{port}" for port in self._routes],
            },
            "accounts": {**accounts, "system": {"users": [{"user": "system", "password": "s"}]}},
            "system_account": "system",
        }


def user_name(side: str, user: str) -> str:
    """What the user of a side logs in as."""
    return f"{side}-{user}"


def _connect(client_id: str, user: str, password: str) -> bytes:
    """CONNECT of MQTT 3.1.1: a clean session with user name and password."""
    texts = [text.encode() for text in (client_id, user, password)]
    body = b"\x00\x04MQTT\x04\xc2\x00\x3c"
    body += b"".join(len(text).to_bytes(2, "big") + text for text in texts)
    return bytes([0x10, len(body)]) + body
