"""A cluster of three RabbitMQ nodes with the MQTT plug-in; virtual hosts are the sides.

It shares only the programs with the machine's RabbitMQ: ports, names, cookie, port mapper and files
are its own. Users, permissions and topic permissions are those of docs/brokers.md."""

import base64
import hashlib
import json
import os
import re
from pathlib import Path

import pytest

from edgeveil_tools.site.broker_rules import rules_for
from edgeveil_tools.site.brokers import free_ports
from tests.kits.broker_cluster import NODES, BrokerCluster, end

PROGRAMS = Path("/usr/lib/rabbitmq/bin")  # /usr/sbin has a wrapper that changes user and folder
_SALT_BYTES = 4
_LEFT_MS = 600_000  # queues without a client expire, since a lost node restores old ones
_ANY_LEVEL = r"[^.#]+"  # of a routing key: of a subscription, `*` too
_CLIENT = r"[.0-9a-z-]*"  # what stands behind a user's name in its client ids


class RabbitCluster(BrokerCluster):
    """RabbitMQ nodes; all users are in one list, so each begins with its side and host."""

    def __init__(self, folder, users):
        if not (PROGRAMS / "rabbitmq-server").exists():
            pytest.skip("rabbitmq-server is not installed")
        super().__init__(folder, users, ports=2)  # MQTT, the other nodes
        self._mapper_port = free_ports(1)[0]
        self._mapper = None

    def user_name(self, side, user):
        return f"{side}:{side}-{user}"

    def start(self):
        self.folder.mkdir(parents=True)
        definitions = json.dumps(self._definitions(), indent=1)
        (self.folder / "definitions.json").write_text(definitions)
        (self.folder / "plugins").write_text("[rabbitmq_mqtt].\n")
        cookie = self.folder / ".erlang.cookie"
        cookie.write_text(os.urandom(20).hex())
        cookie.chmod(0o400)
        mapper = ["epmd", "-address", "127.0.0.1", "-port", str(self._mapper_port)]
        self._mapper = self.spawn("epmd.log", mapper, {})
        for node in range(NODES):  # started together, 3.10 may elect no leader for client ids
            self.start_node(node)
            self.wait_ready()

    def stop(self):
        super().stop()
        if self._mapper is not None:
            end(self._mapper)

    def command(self, node):
        config = self.folder / f"{node}.conf"
        config.write_text("\n".join([*self._config(node), ""]))
        return [PROGRAMS / "rabbitmq-server"]

    def environment(self, node):
        return {
            "HOME": str(self.folder),  # of the cookie
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_NODENAME": _name(node),
            "RABBITMQ_DIST_PORT": str(self.ports[node][1]),
            "RABBITMQ_MNESIA_BASE": str(self.folder / f"store-{node}"),
            "RABBITMQ_LOG_BASE": str(self.folder / f"logs-{node}"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(self.folder / f"{node}"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_PID_FILE": str(self.folder / f"{node}.pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1",
            "RABBITMQ_ALLOW_INPUT": "1",  # the process started is the broker, without a shell above
            "RABBITMQ_SERVER_START_ARGS": "-noinput",
        }

    def _config(self, node):
        yield "listeners.tcp = none"
        yield f"mqtt.listeners.tcp.1 = 127.0.0.1:{self.ports[node][0]}"
        yield "mqtt.allow_anonymous = false"
        yield "mqtt.tcp_listen_options.nodelay = true"
        yield f"load_definitions = {self.folder / 'definitions.json'}"
        yield "cluster_formation.peer_discovery_backend = classic_config"
        for other in range(NODES):
            yield f"cluster_formation.classic_config.nodes.{other + 1} = {_name(other)}"
        yield "cluster_partition_handling = pause_minority"

    def _definitions(self):
        policy = {"name": "edgeveil", "pattern": "^mqtt-subscription-", "apply-to": "queues"}
        policy["definition"] = {"expires": _LEFT_MS}
        found = {key: [] for key in ("users", "permissions", "topic_permissions")}
        found["vhosts"] = [{"name": side} for side in self.users]
        found["policies"] = [{"vhost": side, **policy} for side in self.users]
        for side, users in self.users.items():
            for user, password in users.items():
                name = f"{side}-{user}"
                queue = f"mqtt-subscription-{re.escape(user)}{_CLIENT}qos[01]"
                hashed = {"hashing_algorithm": "rabbit_password_hashing_sha256", "tags": ""}
                hashed |= {"name": name, "password_hash": _hashed(password)}
                found["users"].append(hashed)
                own, either = {"user": name, "vhost": side}, f"^({queue}|amq\\.topic)$"
                allowed = {"configure": f"^{queue}$", "write": either, "read": either}
                found["permissions"].append(own | allowed)
                topics = {access: _allowed(side, user, access) for access in ("read", "write")}
                found["topic_permissions"].append({**own, "exchange": "amq.topic", **topics})
        return found


def _name(node):
    return f"node-{node}@localhost"


def _allowed(side, user, access):
    """Return the routing keys of the topics that the side's access list gives this user."""
    topics = [
        rule.topic.replace("%u", user)
        for rule in rules_for(side) or ()
        if rule.access == access and rule.user in (None, user)
    ]
    keys = [re.escape(topic).replace("/", r"\.").replace(r"\+", _ANY_LEVEL) for topic in topics]
    return f"^({'|'.join(keys)})$" if keys else "^$"


def _hashed(password):
    salt = os.urandom(_SALT_BYTES)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
