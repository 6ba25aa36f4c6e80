"""What a broker of ours refuses: every figure of every profile, at the figure and one beyond."""

import pytest

from edgeveil.config.broker_profiles import PROFILES
from edgeveil.transport.mqtt_packets import Login, connect, encoded_topic, packet, subscribe
from tests.kits.profiled_broker import ProfileGuard

MQTT_3_1_1 = 4
SMALL, LARGE = 20, 30_000  # bytes of a packet


class Client:
    """A client of a broker with this profile; `step_s` pass before each of its packets."""

    def __init__(self, profile, step_s):
        self.now_s, self._step_s, self._messages = 0.0, step_s, 0
        self.guard = ProfileGuard(profile, lambda: self.now_s)

    def sends(self, data):
        self.now_s += self._step_s
        return self.guard.received(data)

    def publishes(self, size, qos, topic="t"):
        """A message whose whole packet has this size."""
        self._messages += 1
        body = encoded_topic(topic) + (self._messages.to_bytes(2, "big") if qos else b"")
        head_bytes = len(packet(0x30, bytes(size))) - size
        first = 0x32 if qos else 0x30
        return self.sends(packet(first, body + bytes(size - head_bytes - len(body))))

    def logs_in(self, client_id="c", keepalive_s=60):
        return self.sends(connect(Login(client_id, None, None, None, keepalive_s, 0), MQTT_3_1_1))

    def subscribes(self, *topics):
        return self.sends(subscribe(1, topics, MQTT_3_1_1))


def in_all(client, total, qos):
    """Messages that have so many bytes together, the last the smallest."""
    count, rest = divmod(total - SMALL, LARGE)
    return [client.publishes(size, qos) for size in (*[LARGE] * count, rest + SMALL)]


AT_ONCE, SLOWLY = 0.0, 1.0
# figure: (seconds between packets, how a client reaches n of it, what the guard says)
WAYS = {
    "publishes_per_s": (
        AT_ONCE,
        lambda client, n: [client.publishes(SMALL, 0) for _ in range(n)],
        "publishes in a second",
    ),
    "bytes_per_s": (AT_ONCE, lambda client, n: in_all(client, n, 0), "bytes in a second"),
    "in_flight_messages": (
        SLOWLY,
        lambda client, n: [client.publishes(SMALL, 1) for _ in range(n)],
        "unacknowledged messages",
    ),
    "in_flight_bytes": (SLOWLY, lambda client, n: in_all(client, n, 1), "unacknowledged bytes"),
    "packet_bytes": (SLOWLY, lambda client, n: [client.publishes(n, 0)], "a packet of"),
    "subscriptions": (
        SLOWLY,
        lambda client, n: [client.subscribes(f"t/{number}") for number in range(n)],
        "subscriptions",
    ),
    "topics_per_subscribe": (
        SLOWLY,
        lambda client, n: [client.subscribes(*(f"t/{number}" for number in range(n)))],
        "topics in one subscription",
    ),
    "topic_levels": (
        SLOWLY,
        lambda client, n: [client.publishes(SMALL + 2 * n, 1, "/".join("t" * n))],
        "levels",
    ),
    "topic_bytes": (SLOWLY, lambda client, n: [client.subscribes("t" * n)], "a topic of"),
    "client_id_bytes": (SLOWLY, lambda client, n: [client.logs_in("c" * n)], "a client id of"),
}
LIMITED = [
    (name, figure)
    for name, profile in PROFILES.items()
    for figure in WAYS
    if getattr(profile, figure) is not None
]


@pytest.mark.parametrize(("name", "figure"), LIMITED)
def test_a_client_is_heard_up_to_the_figure_and_cut_off_beyond(name, figure):
    profile = PROFILES[name]
    step_s, reach, words = WAYS[figure]
    limit = getattr(profile, figure)
    assert set(reach(Client(profile, step_s), limit)) == {None}
    *before, last = reach(Client(profile, step_s), limit + 1)
    assert not any(before)
    assert words in last
