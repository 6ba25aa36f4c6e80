"""A cluster of three NATS nodes, used by MQTT 3.1.1; its accounts are the two sides.

Topics of one account are invisible to another, so one cluster is both edge and cloud broker. In
NATS 2.9.10 a node that comes back does not catch up with persistent subscriptions: once a second
one is killed, these have no majority and receive nothing, while connections stay open."""

import json
import shutil

import pytest

from tests.kits.broker_cluster import BrokerCluster


class NatsCluster(BrokerCluster):
    """NATS nodes; all user names are in one list, so each begins with its side."""

    def __init__(self, folder, users):
        if shutil.which("nats-server") is None:
            pytest.skip("nats-server is not installed")
        super().__init__(folder, users, ports=3)  # MQTT, NATS's own, the other nodes

    def user_name(self, side, user):
        return f"{side}-{user}"

    def command(self, node):
        config = self.folder / f"{node}.conf"
        config.write_text(json.dumps(self._config(node), indent=1))  # JSON is NATS's syntax too
        return ["nats-server", "-c", config]

    def _config(self, node):
        accounts = {"system": {"users": [{"user": "system", "password": "s"}]}}
        for side, users in self.users.items():
            them = [{"user": self.user_name(side, u), "password": p} for u, p in users.items()]
            accounts[side] = {"jetstream": "enabled", "users": them}
        mqtt, own, route = self.ports[node]
        return {
            "server_name": f"node-{node}",
            "listen": f"127.0.0.1:{own}",
            "mqtt": {"listen": f"127.0.0.1:{mqtt}"},
            "jetstream": {"store_dir": str(self.folder / f"store-{node}")},
            "cluster": {
                "name": "edgeveil",
                "listen": f"127.0.0.1:{route}",
                "routes": [f"nats://127.0.0.1:{ports[2]}" for ports in self.ports],
            },
            "accounts": accounts,
            "system_account": "system",
        }
