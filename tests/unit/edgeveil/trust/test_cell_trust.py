"""A cell's proxy is believed in its own cell, and a device is where the newest note says."""

import json
from datetime import timedelta

import pytest

from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import TrustMetadata
from edgeveil.trust.bundle import StoredTrust
from edgeveil.trust.metadata import CellProxy, Delegated, RoleKey, TrustError, now_utc
from edgeveil.trust.moves import Move, moved_cells, read_moves, write_moves
from edgeveil.trust.trusted_keys import check_own_cell, take_trust, trusted_keys
from tests.kits.trust_files import trust_file

NORTH, SOUTH, SITE, THIEF = (SigningKey(bytes([n]) * 32) for n in (40, 41, 42, 43))
CELLS = {
    "north": CellProxy(RoleKey(NORTH.public()), "0a" * 16),
    "south": CellProxy(RoleKey(SOUTH.public())),
}
BOX, WARD = (OpeningKey(bytes([n]) * 32).public() for n in (50, 51))


@pytest.fixture
def held(tmp_path):
    given = trust_file(tmp_path / "trust.json", cells=CELLS, site=RoleKey(SITE.public()))
    return StoredTrust(tmp_path, given)


def test_everybody_believes_the_proxy_of_the_own_cell(held):
    keys = {cell: trusted_keys(held, cell=cell) for cell in ("", "north", "south")}
    assert keys["north"].proxy == NORTH.public() and keys["north"].lineage == "0a" * 16
    assert keys["south"].proxy == SOUTH.public() and keys["south"].lineage == ""
    assert keys[""].proxy not in (NORTH.public(), SOUTH.public())
    assert len({one.cloud for one in keys.values()}) == 1
    with pytest.raises(TrustError) as caught:
        trusted_keys(held, cell="east")
    assert caught.value.reason == "unknown_cell"


def test_a_rotation_reaches_its_cell_alone_and_a_cell_that_is_gone_is_refused(tmp_path, held):
    later = CELLS | {"north": CellProxy(RoleKey(THIEF.public(), 1))}
    (tmp_path / "later").mkdir()
    given = trust_file(tmp_path / "2", cells=later, site=RoleKey(SITE.public()), version=2)
    metadata = TrustMetadata((), StoredTrust(tmp_path / "later", given).metadata.document)
    assert take_trust(held, metadata, "east") == fx.WorkFailed("unknown_cell")
    keys = trusted_keys(held, cell="south")
    assert keys.proxy == SOUTH.public() and keys.versions == (1, 2)
    assert trusted_keys(held, cell="north").proxy == THIEF.public()
    assert take_trust(held, metadata, "south") is None, "nothing is new"


def test_a_proxy_that_claims_anothers_cell_is_refused(held):
    check_own_cell(held, "north", NORTH.public())
    check_own_cell(held, "north", THIEF.public())  # a next key may be there: delegated_key judges
    with pytest.raises(TrustError, match="is of cell 'north'"):
        check_own_cell(held, "south", NORTH.public())


# --- moves ---


def delegated(site=SITE, epoch=0):
    key = site and RoleKey(site.public(), epoch)
    return Delegated(1, now_utc() + timedelta(days=9), {}, site=key)


def move(cell="south", number=1, *, sealing=BOX, key=SITE, epoch=0):
    return Move.make(key, epoch, sealing, cell, number)


def test_the_newest_note_of_the_site_says_where_a_device_belongs():
    notes = [move("south", 1), move("north", 3), move("east", 2), move("south", 1, sealing=WARD)]
    settled = {BOX.to_bytes(): "north", WARD.to_bytes(): "south"}
    for order in (notes, notes[::-1]):
        assert moved_cells(order, delegated()) == settled
    assert moved_cells([move(key=THIEF)], delegated()) == {}
    assert moved_cells([move()], delegated(site=None)) == {}
    forged = Move(BOX, "north", 0, 9, move().signature)
    assert moved_cells([forged, move()], delegated()) == {BOX.to_bytes(): "south"}


def test_a_new_key_repairs_a_number_that_was_run_ahead():
    ahead, again = move("east", 2**31 - 1), move("south", 2, key=THIEF, epoch=1)
    assert moved_cells([ahead, again], delegated(THIEF, 1)) == {BOX.to_bytes(): "south"}
    with pytest.raises(TrustError) as caught:
        ahead.verify(RoleKey(THIEF.public(), 1))
    assert caught.value.reason == "old_epoch"


def test_a_file_of_notes_is_read_back_and_one_of_another_form_refused(tmp_path):
    path = tmp_path / "moves.jsonl"
    notes = [move(), move("", 4, sealing=WARD)]
    path.write_bytes(write_moves(notes))
    assert read_moves(path) == notes
    odd = {"cell": "South", "number": -1, "sealing": "00", "more": 1}
    for change in (*({key: value} for key, value in odd.items()), {"number": True}):
        path.write_text(json.dumps(move().to_plain() | change) + "\n")
        with pytest.raises(TrustError, match=r"moves\.jsonl:1"):
            read_moves(path)
