"""Boxes claim and renew while others flood the desk: at a real broker, by the real connection."""

import asyncio
import secrets
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager

import pytest
from broker_harness import certified, listener_tls
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from edgeveil.claim import ClaimRequest, claim_text
from edgeveil.config.edge import EdgeSite
from edgeveil.config.proxy import ProxySite
from edgeveil.crypto.authorities import Authority, new_key
from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment
from edgeveil.transport.link import Topics
from edgeveil.transport.mqtt_packets import Login, connect, encoded_topic, publish_head
from edgeveil_edge.claim import renew, take_up_claim
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_proxy.claims import CLAIMS_FILE, ClaimBook, ClaimLink
from edgeveil_proxy.registry import REGISTRY_FILE, Registry
from edgeveil_tools.site import brokers
from edgeveil_tools.site.broker_rules import rules_for
from edgeveil_tools.site.brokers import BrokerProcess, BrokerSpec
from tests.kits.earlier_code import earlier_code

TOPICS, PROXY = Topics(), SigningKey.generate()
A_SECOND, TICK_S = 4000, 0.02
BEFORE = "706e04621a403ed87c032c6f8edf16a094c091d7"
STORY_S = 60


class Place:
    """A broker that asks for certificates, its authority, and the folders of proxy and boxes."""

    def __init__(self, folder):
        self.folder, self.authority = folder, Authority.make("edge")
        PROXY.public().save(folder / "proxy.pub")
        SigningKey.generate().public().save(folder / "cloud.pub")
        certified(folder, self.authority, "broker", "proxy", "claim")
        spec = BrokerSpec("mosquitto", acl="edge", tls=listener_tls(folder, "broker", ca=True))
        self.broker = BrokerProcess(spec, folder / "broker")
        self.broker.start()

    def tls(self, name, folder=None):
        files = {"ca_file": str(self.folder / "ca.crt"), "url": self.broker.url}
        return {**files, **pair((folder or self.folder) / name)}

    def box(self, name):
        """A box's site file, with a claim in its folder."""
        state = self.folder / name
        state.mkdir()
        with closing(ClaimBook(self.folder / CLAIMS_FILE)) as book:
            ((_, claim),) = book.add([name], 3600.0)
        (state / "claim").write_text(claim_text(claim))
        return EdgeSite(
            name=name,
            broker=self.tls("edge", state),
            state_dir=state,
            proxy_key_file=self.folder / "proxy.pub",
            cloud_key_file=self.folder / "cloud.pub",
            data={"name": "digits", "source": "digits"},
            claim={**pair(self.folder / "claim"), "claim_file": str(state / "claim")},
        )

    def device(self, name):
        """One that has claimed before: its identity, with a certificate."""
        signing = SigningKey.generate()
        enrolment = Enrolment.make(signing, OpeningKey.generate())
        with closing(Registry(self.folder / REGISTRY_FILE)) as registry:
            registry.admit(enrolment, note=name)
        certified(self.folder, self.authority, enrolment.device_id)
        return signing, enrolment

    def admitted(self):
        with closing(Registry(self.folder / REGISTRY_FILE)) as registry:
            return registry.admitted()

    def proxy_site(self):
        return ProxySite(
            edge_broker=self.tls("proxy"),
            cloud_broker={"url": "mqtt://127.0.0.1:1"},
            state_dir=self.folder,
            cloud_key_file=self.folder / "cloud.pub",
            claims=pair(self.folder / "ca", "authority_"),
        )

    @asynccontextmanager
    async def desk(self):
        """The proxy's connection, and whom it refused."""
        refused, site = [], self.proxy_site()
        desk = ClaimLink(
            site, site.claims, lambda: PROXY, lambda sender, why: refused.append((sender.id, why))
        )
        running = asyncio.ensure_future(desk.run())
        try:
            while not desk._link.connected:
                assert not running.done(), running.exception()
                await asyncio.sleep(0.01)
            yield desk, refused
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await desk.close()


def pair(path, prefix=""):
    """The keys of a site file that name a certificate and its key."""
    return {f"{prefix}cert_file": f"{path}.crt", f"{prefix}key_file": f"{path}.key"}


@contextmanager
def flood(place, user, topics, payload, a_second):
    """A thread that publishes as this user until the end; `topics()` gives where."""
    context = ssl.create_default_context(cafile=place.folder / "ca.crt")
    context.load_cert_chain(place.folder / f"{user}.crt", place.folder / f"{user}.key")
    over, at = threading.Event(), ("127.0.0.1", place.broker.port)
    login = connect(Login(f"flood-{secrets.token_hex(8)}", None, None, None, 60, 65536), 4)

    def one():
        return publish_head(encoded_topic(topics()), len(payload), 0, 4) + payload

    def play():
        plain = socket.create_connection(at)
        with context.wrap_socket(plain, server_hostname=at[0]) as line:
            line.sendall(login)
            line.recv(64)
            while not over.wait(max(TICK_S, 1 / a_second)):
                line.sendall(b"".join(one() for _ in range(max(1, int(a_second * TICK_S)))))

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)


def renewal_of(signing, enrolment):
    point = new_key().public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return ClaimRequest.make(signing, enrolment, point).to_bytes()


KINDS = {
    "a byte in its own name": ("own", b"x"),
    "one valid renewal, over and over": ("own", None),
    "a byte under keys of nobody": ("nobody", b"x"),
}
BYTE_OF_BEFORE = "before", b"x"  # under the topic that boxes of the version before share


def what_it_sends(hostile, where, sent):
    """As whom one hostile device sends what, where, and how often in a second."""
    user = hostile[1].device_id
    topics = {
        "own": lambda: TOPICS.renewal(user),
        "before": lambda: TOPICS.claims_of_before,
        "nobody": lambda: TOPICS.claim(secrets.token_hex(16)),
    }
    often = A_SECOND if sent else 100
    name = "claim" if where == "nobody" else user
    return name, topics[where], sent or renewal_of(*hostile), often


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path)
    yield made
    made.broker.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_boxes_claim_and_renew_while_devices_flood_the_desk(place, kind, capsys):
    loud = [place.device(f"loud-{number}") for number in range(2)]
    quiet = place.box("quiet")

    async def play():
        async with place.desk() as (desk, refused):
            with ExitStack() as floods:
                for one in loud:
                    floods.enter_context(flood(place, *what_it_sends(one, *KINDS[kind])))
                await asyncio.sleep(1.0)
                admitted = await take_up_claim(quiet)
                first = quiet.broker.cert_file.read_bytes()
                await renew(quiet, DeviceIdentity.load_or_create(quiet.state_dir))
                assert quiet.broker.cert_file.read_bytes() != first
            return admitted, refused, desk.dropped(), desk.counts()

    admitted, refused, dropped, counts = asyncio.run(asyncio.wait_for(play(), STORY_S))
    assert "waiting" not in capsys.readouterr().out, "the first request was answered"
    assert counts["admitted"] == 1 and counts["dropped"] > 50
    names = {enrolment.device_id for _, enrolment in loud}
    named = {one["sender"] for one in dropped}
    assert admitted not in named and "quiet" not in named
    if KINDS[kind][0] == "own":
        assert named == names == {who for who, _ in refused}, "who floods is named"
    else:
        assert not refused


THEN = """
import asyncio, json, sys
from pathlib import Path
from edgeveil.crypto.keys import SigningKey
from edgeveil.sites.edge import EdgeSite
from edgeveil.sites.proxy import ProxySite
part, said = sys.argv[1], json.loads(sys.argv[2])
if part == "box":
    from edgeveil_edge.claim import take_up_claim
    print(asyncio.run(take_up_claim(EdgeSite(**said))))
else:
    from edgeveil_proxy.claim_link import ClaimLink
    site, key = ProxySite(**said), SigningKey.load(Path(sys.argv[3]))
    asyncio.run(ClaimLink(site, site.claims, lambda: key).run())
"""


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """The environment of code from before a request's topic named its sender."""
    return earlier_code(tmp_path_factory.mktemp("earlier"), BEFORE)


def as_json(site):
    return site.model_dump_json(exclude_unset=True)


def test_a_box_of_the_version_before_claims_at_today_s_proxy(place, before):
    """Also while others flood the topic that it shares with them."""
    loud, box = place.device("loud"), place.box("box")
    command = [sys.executable, "-c", THEN, "box", as_json(box)]
    how = {"env": before, "cwd": place.folder, "capture_output": True, "text": True}

    async def play():
        async with place.desk() as (desk, _):
            with flood(place, *what_it_sends(loud, *BYTE_OF_BEFORE)):
                done = await asyncio.to_thread(subprocess.run, command, timeout=50, **how)
            return done, desk.counts()

    done, counts = asyncio.run(asyncio.wait_for(play(), STORY_S))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] in place.admitted() and counts["admitted"] == 1


@pytest.mark.parametrize("proxy", [pytest.param("before", marks=pytest.mark.slow), "today"])
def test_a_box_claims_where_broker_and_proxy_are_of_the_version_before(
    tmp_path, before, proxy, monkeypatch
):
    """The order of an upgrade is free: neither the new subscriptions nor the new topics are let."""
    named = (TOPICS.renewal("%u"), TOPICS.any_renewal, TOPICS.any_claim)

    def of_before(*asked, **how):
        return tuple(rule for rule in rules_for(*asked, **how) if rule.topic not in named)

    monkeypatch.setattr(brokers, "rules_for", of_before)
    monkeypatch.setattr("edgeveil_edge.claim.ANSWER_S", 2.0)
    place = Place(tmp_path)
    box, key = place.box("box"), tmp_path / "proxy-own.key"
    PROXY.save(key)
    command = [sys.executable, "-c", THEN, "proxy", as_json(place.proxy_site()), str(key)]

    async def play():
        if proxy == "today":
            async with place.desk():
                return await take_up_claim(box)
        with subprocess.Popen(command, env=before, cwd=tmp_path) as running:
            try:
                return await take_up_claim(box)
            finally:
                running.terminate()

    try:
        assert asyncio.run(asyncio.wait_for(play(), STORY_S)) in place.admitted()
    finally:
        place.broker.stop()
    assert box.broker.cert_file.exists()
