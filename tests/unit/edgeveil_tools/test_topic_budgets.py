"""Every topic that a device may write counts against its sender before it is parsed, and names it.

The table of docs/protocol.md is held against the access lists, and each of its lines is flooded.
"""

import re
from pathlib import Path

import pytest

from edgeveil.claim import USER, claimed_key_id
from edgeveil.config.proxy import ProxySite
from edgeveil.crypto.authorities import Authority
from edgeveil.crypto.keys import SigningKey
from edgeveil.protocol.effects import DeviceAddress
from edgeveil.transport.link import Topics
from edgeveil_proxy.claims import ClaimLink
from edgeveil_proxy.conduct import ConductLimits, DeviceConduct
from edgeveil_proxy.registry import REGISTRY_FILE, Registry
from edgeveil_tools.site.broker_rules import rules_for
from tests.unit.edgeveil_proxy.test_claims import Box

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"
WRITERS = {None: "device", USER: "box with a claim", "proxy": "proxy", "cloud": "cloud"}
PLACES = {"d/%u/": "d/{device_id}/", "d/+/": "d/{device_id}/", "claim/+/": "claim/{key_id}/"}
PLACES |= {"b/+/+": "b/{level}/{bucket}"}
TOPICS, FLOOD = Topics(), 3000
NOBODY = "–"


def lines():
    """(broker, topic, who writes) -> what it counts against, and what names the sender."""
    text = PAGE.read_text("utf-8").partition("\n## Topics\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {
        (broker, topic.strip("`"), writer): (budget, named)
        for broker, topic, writer, _reader, budget, named in rows[1:]
        if not broker.startswith("-")
    }


def rules():
    found = set()
    for side in ("edge", "cloud"):
        for rule in rules_for(side):
            topic = rule.topic
            for place, shown in PLACES.items():
                topic = topic.replace(place, shown)
            if rule.access == "write":
                found.add((side, topic, WRITERS[rule.user]))
    return found


def test_the_table_of_topics_is_what_the_brokers_allow_and_gives_each_device_a_budget():
    assert set(lines()) == rules()
    for (_, topic, writer), (budget, named) in lines().items():
        assert writer in ("proxy", "cloud") or NOBODY not in (budget, named), topic


class Desks:
    """All that reads from the edge broker, as it decides whether to take a message."""

    def __init__(self, folder, boxes):
        Authority.make("claims").save(folder / "ca.crt", folder / "ca.key")
        SigningKey.generate().public().save(folder / "cloud.pub")
        self.registry = Registry(folder / REGISTRY_FILE)
        for box in boxes:
            self.registry.admit(box.enrolment)
        self.registry.changed()
        known = self.registry.verify_key
        self.conduct = DeviceConduct(
            ConductLimits(), lambda one: known(one) is not None, lambda _: None, clock=lambda: 9.0
        )
        link, ca = {"url": "mqtt://127.0.0.1:1"}, {"authority_cert_file": folder / "ca.crt"}
        site = ProxySite(
            edge_broker=link,
            cloud_broker=link,
            state_dir=folder,
            cloud_key_file=folder / "cloud.pub",
            claims=ca | {"authority_key_file": folder / "ca.key"},
        )
        self.claims = ClaimLink(site, site.claims, SigningKey.generate, self.conduct.refused)

    def take(self, topic, raw):
        sender = TOPICS.sender_of(topic)
        if sender is not None:
            assert isinstance(sender, DeviceAddress)
            return self.conduct.refusal(sender, raw) is None
        return self.claims._takes(topic, raw)

    def named(self):
        return {one["device"] for one in self.conduct.refused_by_device()} | {
            one["sender"] for one in self.claims.dropped()
        } - {""}


@pytest.fixture
def desks(tmp_path):
    boxes = loud, quiet = Box(), Box()
    yield Desks(tmp_path, boxes), loud, quiet


@pytest.mark.parametrize(
    "topic", sorted(topic for _, topic, writer in rules() if writer not in ("proxy", "cloud"))
)
@pytest.mark.parametrize("valid", [True, False])
def test_a_flood_of_one_sender_leaves_all_others_their_turn(desks, topic, valid):
    taken, loud, quiet = desks

    def at(box):
        asked = box.renews()
        places = {"{device_id}": box.id, "{key_id}": claimed_key_id(asked)}
        return re.sub(r"\{\w+\}", lambda place: places[place[0]], topic), asked

    where, asked = at(loud)
    flood = asked if valid else b"x"
    assert sum(taken.take(where, flood) for _ in range(FLOOD)) < FLOOD / 4
    where, asked = at(quiet)
    assert taken.take(where, asked), "who is known is read"
    assert quiet.id not in taken.named()
    unsigned = not valid and topic == TOPICS.claims_of_before
    assert (loud.id in taken.named()) is not unsigned


def test_no_key_is_made_up_in_the_place_of_one_that_is_known(desks):
    taken, _, quiet = desks
    for number in range(FLOOD):
        taken.take(TOPICS.claim(f"{number:032x}"), b"x")
    asked = quiet.renews()
    assert taken.take(TOPICS.claim(claimed_key_id(asked)), asked)
    assert taken.named() == set()
