"""The relay between real sockets: what passes untouched, and what each fault does to it."""

import socket
import threading

import pytest

from edgeveil.transport.mqtt_packets import packet
from edgeveil_tools.site.brokers import free_ports
from tests.chaos.faults import Fault
from tests.chaos.relays import Relays

CONNECT_5 = b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03abc"
CONNECT_4 = b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x3c\x00\x03abc"
PING = b"\xc0\x00"


def publish(payload, version=5):
    """QoS 1, to `a/b`."""
    return packet(0x32, b"\0\3a/b" + b"\0\7" + (b"\0" if version == 5 else b"") + payload)


class Far:
    """A server behind the relay that keeps what it hears and answers with what it is told."""

    def __init__(self):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.heard = bytearray()
        self.more = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            while data := connection.recv(65536):
                with self.more:
                    self.heard += data
                    self.more.notify_all()

    def wait(self, count):
        with self.more:
            assert self.more.wait_for(lambda: len(self.heard) >= count, 10)
            return bytes(self.heard)


@pytest.fixture
def far():
    found = Far()
    yield found
    found.server.close()


@pytest.fixture
def relays(far):
    found = Relays({"link": (free_ports(1)[0], far.port)}, seed=3)
    found.start()
    yield found
    found.stop()


def near(relays):
    return socket.create_connection(("127.0.0.1", relays.links["link"].port), timeout=10)


def test_without_a_fault_every_byte_passes(relays, far):
    sent = CONNECT_5 + publish(b"x" * 70_000) + PING
    with near(relays) as link:
        link.sendall(sent)
        assert far.wait(len(sent)) == sent
    assert relays.counts()["link"] == {"connections": 1, "packets": 3}


def test_a_publication_is_repeated_and_nothing_else(relays, far):
    relays.begin(Fault(0.0, "duplicate", "link", 60.0, 1.0))
    with near(relays) as link:
        link.sendall(CONNECT_5 + publish(b"one") + PING)
        wanted = CONNECT_5 + publish(b"one") * 2 + PING
        assert far.wait(len(wanted)) == wanted


def test_one_bit_of_a_payload_is_flipped(relays, far):
    relays.begin(Fault(0.0, "corrupt", "link", 60.0, 1.0))
    with near(relays) as link:
        sent = CONNECT_4 + publish(b"payload", version=4) + PING
        link.sendall(sent)
        heard = far.wait(len(sent))
    different = [at for at in range(len(sent)) if heard[at] != sent[at]]
    assert len(different) == 1
    assert sent.index(b"payload") <= different[0] < sent.index(b"payload") + 7


def test_a_held_up_link_still_gives_everything_in_order(relays, far):
    relays.begin(Fault(0.0, "delay", "link", 60.0, 0.02))
    with near(relays) as link:
        sent = CONNECT_5 + b"".join(publish(bytes([k])) for k in range(20))
        link.sendall(sent)
        assert far.wait(len(sent)) == sent
    assert relays.counts()["link"]["delayed"] == 21


def test_a_cut_breaks_what_is_open_and_refuses_what_comes(relays, far):
    with near(relays) as link:
        link.sendall(CONNECT_5)
        far.wait(len(CONNECT_5))
        relays.begin(Fault(0.0, "cut", "link", 60.0))
        assert _is_closed(link)
    with near(relays) as link:
        assert _is_closed(link)


def _is_closed(link):
    try:
        return link.recv(1) == b""
    except ConnectionResetError:
        return True
