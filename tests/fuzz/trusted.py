"""Targets: what a root delegates, and a proxy's file of devices with the notes of their moves."""

from datetime import UTC, datetime

from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment, EnrolmentError
from edgeveil.trust.metadata import (
    ROLES,
    CellProxy,
    Delegated,
    RoleKey,
    TrustError,
    document_bytes,
    make_delegations,
    read_delegations,
    sign_document,
)
from edgeveil.trust.moves import Move, moved_cells
from edgeveil_proxy.devices_file import DeviceEntry, read_devices
from tests.fuzz.target import Target, as_file, demand

_KEYS = [SigningKey(bytes([n]) * 32) for n in range(1, 9)]
_SITE = RoleKey(_KEYS[7].public(), 1)


def _said(cells):
    named = {
        f"c-{n}": CellProxy(RoleKey(_KEYS[3 + n].public(), n), "0a" * 16) for n in range(cells)
    }
    roles = {role: RoleKey(key.public()) for role, key in zip(ROLES, _KEYS, strict=False)}
    ends = datetime(2100, 1, 1, tzinfo=UTC)
    return Delegated(2, ends, roles, "", {"edge": "PEM\n"}, named, _SITE if cells else None)


def _delegations(data):
    found = read_delegations(data)
    demand(set(found.roles) == set(ROLES), "every role has its key")
    keys = [found.proxy_of(cell).rosters.key for cell in ("", *found.cells)]
    demand(len(set(keys)) == len(keys), "no two cells have one key")
    demand(read_delegations(document_bytes(make_delegations(found))) == found, "it survives")


def _delegations_seeds():
    for cells in range(3):
        made = make_delegations(_said(cells))
        sign_document(made, _KEYS[0])
        yield document_bytes(made)


def _devices(data):
    planned = read_devices(as_file("devices.jsonl", data))
    for one in planned:
        demand(one.move is None or one.move.sealing == one.enrolment.sealing, "its own move")
    moves = [one.move for one in planned if one.move]
    settled = moved_cells(moves, _said(1))
    signed = {(move.sealing.to_bytes(), move.cell) for move in moves if move.epoch == _SITE.epoch}
    demand(set(settled.items()) <= signed, "nobody is where no note says")


def _devices_seeds():
    opening = OpeningKey(bytes([9]) * 32)
    enrolment = Enrolment.make(_KEYS[0], opening)
    for number in range(1, 3):
        move = Move.make(_KEYS[7], _SITE.epoch, opening.public(), "south", number)
        yield DeviceEntry(enrolment, "box", False, move).to_line().encode()
    yield DeviceEntry(enrolment, "box", True).to_line().encode()


TARGETS = {
    "delegations": Target(
        _delegations, _delegations_seeds, (TrustError,), 8192, (b'"cells"', b'"epoch"', b'"site"')
    ),
    "devices": Target(
        _devices,
        _devices_seeds,
        (EnrolmentError, TrustError),
        2048,
        (b'"move"', b'"number"', b"\n"),
    ),
}
