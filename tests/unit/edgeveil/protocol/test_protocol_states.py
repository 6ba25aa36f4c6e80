"""Transitions are data: a step follows the table, or raises and changes nothing."""

from __future__ import annotations

from enum import Enum

import pytest
from protocol_kit import manifest

from edgeveil.errors import ProtocolError
from edgeveil.protocol import cloud_job, device_round, proxy_rounds
from edgeveil.protocol.effects import StateTable
from edgeveil.protocol.proxy_rounds import Collection

TABLES = {
    "device": device_round.DEVICE_STATES,
    "cloud": cloud_job.CLOUD_STATES,
    "collection": proxy_rounds.COLLECTION_STATES,
}


class Door(Enum):
    OPEN = "open"
    SHUT = "shut"


def test_the_table_decides():
    table = StateTable(Door.SHUT, {(Door.SHUT, "pull"): Door.OPEN})
    assert table.step(Door.SHUT, "pull") is Door.OPEN
    assert table.allows(Door.SHUT, "pull") and not table.allows(Door.OPEN, "pull")
    with pytest.raises(ProtocolError) as caught:
        table.step(Door.OPEN, "pull")
    assert caught.value.reason == "illegal_transition"
    assert str(caught.value) == "'pull' cannot happen in state 'open'"


def test_the_diagram_holds_the_start_and_every_transition():
    table = StateTable(Door.SHUT, {(Door.SHUT, "pull"): Door.OPEN, (Door.OPEN, "push"): Door.SHUT})
    assert table.diagram().splitlines() == [
        "stateDiagram-v2",
        "    [*] --> shut",
        "    shut --> open: pull",
        "    open --> shut: push",
    ]


@pytest.mark.parametrize("name", TABLES)
def test_every_state_can_be_reached_and_left(name):
    table = TABLES[name]
    reached, new = set(), {table.start}
    while new:
        reached |= new
        new = {to for (state, _), to in table.table.items() if state in reached} - reached
    assert reached == set(type(table.start))
    assert {state for state, _ in table.table} == reached


def test_an_illegal_step_leaves_a_collection_as_it_was():
    round_ = Collection(manifest(b""), 3)
    with pytest.raises(ProtocolError):
        round_.step("held_by_cloud")
    assert round_.state is proxy_rounds.CollectionState.COLLECTING
    round_.step("quorum")
    assert round_.state is proxy_rounds.CollectionState.GRACE
