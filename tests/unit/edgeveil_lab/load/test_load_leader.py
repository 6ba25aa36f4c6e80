"""The leader over real HTTP: shares, the shared word, and what it does not understand."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import aiohttp
import msgspec
import pytest

from edgeveil.errors import UsageError
from edgeveil_lab.load.counters import GeneratorLoad, UploadCounters
from edgeveil_lab.load.leader import (
    FleetShare,
    GeneratorReport,
    JoinRequest,
    Leader,
    LeaderReply,
    SiteAccess,
    join_token,
)
from edgeveil_lab.load.scenario import LoadOptions
from edgeveil_lab.load.sites import LoadFleet

WHERE = {"": SiteAccess("mqtt://127.0.0.1:1", b"c" * 32, b"p" * 32, None)}
TOKEN = "the-word"


def report(number: int, state: str) -> GeneratorReport:
    counters = UploadCounters()
    counters.connected = counters.connects = number
    return GeneratorReport(number, state, counters.to_plain(), GeneratorLoad())


async def post(url: str, path: str, content: object, token: str = TOKEN) -> tuple[int, bytes]:
    body = content if isinstance(content, bytes) else msgspec.msgpack.encode(content)
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/{path}", data=body, headers=headers) as answer,
    ):
        return answer.status, await answer.read()


def served(play) -> None:
    """Run `play(leader, url, fleet)` against a leader of two generators and five devices."""

    async def body() -> None:
        fleet = LoadFleet.make(5)
        leader = Leader(LoadOptions(devices=5, processes=2), fleet, 2, WHERE, TOKEN)
        server = await leader.serve("127.0.0.1", 0)
        try:
            await play(leader, server.url, fleet)
        finally:
            await server.stop()

    asyncio.run(body())


def test_every_device_is_dealt_once_and_no_more_generators_are_taken():
    async def play(leader, url, fleet):
        shares = []
        for _ in range(2):
            status, raw = await post(url, "join", JoinRequest(time.time(), 1, True))
            assert status == 200
            shares.append(msgspec.msgpack.decode(raw, type=FleetShare))
        dealt = [member.signing for share in shares for member in share.members]
        assert sorted(dealt) == sorted(member.signing for member in fleet.members)
        assert [share.number for share in shares] == [1, 2]
        assert LoadOptions.model_validate_json(shares[0].options).devices == 5
        assert (await post(url, "join", JoinRequest(0.0, 1, True)))[0] == 409

    served(play)


def test_reports_are_added_up_and_answered_with_the_command():
    async def play(leader, url, fleet):
        leader.command = "connect"
        _, raw = await post(url, "report", report(1, "ready"))
        assert msgspec.msgpack.decode(raw, type=LeaderReply).command == "connect"
        assert not leader.all_joined
        await post(url, "report", report(2, "connected"))
        assert leader.all_joined
        assert not leader.all_in("connected")
        assert leader.totals().counts["connected"] == 3
        await post(url, "report", report(1, "connected"))
        assert leader.all_in("connected")

    served(play)


@pytest.mark.parametrize("token", ["", "the-wor", "the-word2", "\udcff"])
def test_who_does_not_know_the_word_gets_no_keys(token):
    async def play(leader, url, fleet):
        status, raw = await post(url, "join", JoinRequest(0.0, 1, False), token)
        assert status == 401
        assert raw == b"wrong token"
        assert not leader.reports

    served(play)


def test_what_it_does_not_understand_changes_nothing():
    async def play(leader, url, fleet):
        counters = UploadCounters().to_plain()
        for path in ("join", "report"):
            assert (await post(url, path, b"\xc1"))[0] == 400
            assert (await post(url, path, b"\x81\xa1\xff\x01"))[0] == 400
        for wrong in (
            {},
            {**counters, "rounds": [{}]},
            {**counters, "ack_s": 1},
            {**counters, "refused": 7},
        ):
            assert (await post(url, "report", GeneratorReport(1, "ready", wrong, GeneratorLoad())))[
                0
            ] == 400
        assert not leader.reports
        assert (await post(url, "join", JoinRequest(0.0, 1, True)))[0] == 200

    served(play)


def test_the_shared_word_is_made_once_and_read_again(tmp_path):
    word = join_token(tmp_path / "word")
    assert len(word) >= 32
    assert join_token(tmp_path / "word") == word
    assert (tmp_path / "word").stat().st_mode & 0o777 == 0o600
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UsageError, match="holds no token"):
        join_token(tmp_path / "empty")


def test_each_cell_has_its_own_generators_and_every_device_one_of_them():
    where = {cell: replace(WHERE[""], broker=f"mqtt://{cell}:1") for cell in ("north", "south")}

    async def body() -> None:
        fleet = LoadFleet.make(7)
        leader = Leader(LoadOptions(devices=7, cells=2), fleet, 4, where, TOKEN)
        server = await leader.serve("127.0.0.1", 0)
        try:
            shares = []
            for number in range(1, 5):
                _, raw = await post(server.url, "join", JoinRequest(time.time(), 1, True))
                shares.append(msgspec.msgpack.decode(raw, type=FleetShare))
                await post(server.url, "report", report(number, "connected"))
        finally:
            await server.stop()
        assert [share.cell for share in shares] == ["north", "south"] * 2
        assert all(share.broker == f"mqtt://{share.cell}:1" for share in shares)
        for at, cell in enumerate(where):
            dealt = [m.signing for share in shares if share.cell == cell for m in share.members]
            assert sorted(dealt) == sorted(m.signing for m in fleet.members[at::2])
            assert leader.fleet_of(cell) == fleet.members[at::2]
        connected = [leader.totals(cell).counts["connected"] for cell in (*where, None)]
        assert connected == [1 + 3, 2 + 4, 10]

    asyncio.run(body())
