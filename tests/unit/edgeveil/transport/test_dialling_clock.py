"""A certificate that is refused for its time: the clock is named, and only else the certificate."""

import datetime
import socket
import ssl
import threading

import pytest

from edgeveil.config.addresses import BrokerAddress
from edgeveil.transport import dialling
from tests.kits.certificates import issue

DAY = datetime.timedelta(days=1)
BROKER = BrokerAddress.parse("mqtts://localhost:8883")
EARLY, LATE, NOW = (DAY, 2 * DAY), (-2 * DAY, -DAY), (-DAY, DAY)


def certificate(folder, times):
    """Of localhost, signed by itself, good between these from now; and its key."""
    folder.mkdir(exist_ok=True)
    issue(folder, "localhost", hosts=["localhost"], begins=times[0], ends=times[1])
    return folder / "localhost.crt", folder / "localhost.key"


def served(theirs, shown, **wanted):
    """A thread with the server's half of a handshake that fails."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*shown)
    if ca := wanted.get("ca"):
        context.load_verify_locations(ca)
        context.verify_mode = ssl.CERT_REQUIRED
        context.maximum_version = wanted["version"]

    def serve():
        listens = theirs.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        one = theirs.accept()[0] if listens else theirs
        with one, pytest.raises((ssl.SSLError, OSError)):
            context.wrap_socket(one, server_side=True)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def fault(shown, own=None, **wanted):
    """What a handshake with a broker that shows this certificate fails of."""
    client = ssl.create_default_context(cafile=str(shown[0]))
    if own is not None:
        client.load_cert_chain(*own)
    ours, theirs = socket.socketpair()
    serving = served(theirs, shown, **wanted)
    with ours, pytest.raises(ssl.SSLError) as caught:
        client.wrap_socket(ours, server_hostname="localhost").recv(1)
    serving.join()
    return dialling.dial_fault(caught.value, BROKER)


def test_not_yet_valid_is_the_clocks_matter_and_expired_names_it_first(tmp_path):
    said = str(fault(certificate(tmp_path / "early", EARLY)))
    assert "not yet valid" in said and "set this machine's clock" in said
    assert datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d") in said
    assert "renew" not in said
    said = str(fault(certificate(tmp_path / "late", LATE)))
    assert said.index("set this machine's clock") < said.index("renew the certificate")


@pytest.mark.parametrize(("times", "clock"), [(EARLY, 0), (LATE, 20), (NOW, None)])
def test_a_broker_that_hangs_up_on_ours_leaves_the_clock_where_its_time_does_not_hold(
    tmp_path, times, clock
):
    found = dialling.hung_up(BROKER, certificate(tmp_path, times)[0])
    at = found.fix.find("set this machine's clock")
    assert at == (-1 if clock is None else at) and (clock is None or 0 <= at <= clock)
    assert ("bundle" in found.fix) is (clock != 0)
