"""A link that is down costs no attempt, is named, and its pause ends with it."""

from __future__ import annotations

import pytest
from cloud_bench import (
    absorb,
    broadcast,
    cloud,
    done,
    fire,
    hand_over,
    receive,
    seal,
    start,
    waiting,
)
from protocol_kit import JOB, PROXY, at, bodies, stored, tasks, timers
from proxy_bench import proxy

from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_reasons import (
    EDGE_LINK,
    OTHER_KEY,
    OWN_LINK,
    SILENT,
    RoundAnswers,
    goes_on,
    pause_advice,
    resume_follows,
)
from edgeveil.protocol.messages import LinkState, Shortfall

UP, LOST = fx.PeerConnected(fx.ProxyAddress()), fx.PeerLost(fx.ProxyAddress())
TWICE = cj.StartJob(JOB, 1, 1, exchanges=2, retries=1)


def lose_own(machine):
    return machine.handle(LOST, 0.0)


def lose_edge(machine):
    return receive(machine, PROXY.note(LinkState(False)))


def own_is_back(machine):
    return machine.handle(UP, 0.0)


def edge_is_back(machine):
    return receive(machine, PROXY.note(LinkState(True)))


def by_shortfall(machine, attempt=1):
    return receive(machine, PROXY.note(Shortfall(at(1, attempt), 0, 0)))


def by_silence(machine, attempt=1):
    return fire(machine, "watchdog")


def by_a_poor_batch(machine, attempt=1):
    (task,) = tasks(hand_over(machine, at(1, attempt)))
    return done(machine, task, cj.TooFewUploads("1 valid upload"))


def sign_otherwise(machine):
    return machine.handle(fx.PeerSigned(fx.ProxyAddress(), False), 0.0)


def sign_as_pinned(machine):
    return machine.handle(fx.PeerSigned(fx.ProxyAddress(), True), 0.0)


OUTAGES = [
    (lose_own, own_is_back, OWN_LINK),
    (lose_edge, edge_is_back, EDGE_LINK),
    (sign_otherwise, sign_as_pinned, OTHER_KEY),
]
ENDS = [by_shortfall, by_silence, by_a_poor_batch]


@pytest.mark.parametrize(("lose", "back", "link"), OUTAGES)
@pytest.mark.parametrize("ends", ENDS)
def test_an_attempt_that_ends_while_a_link_is_down_pauses_the_job_and_names_the_link(
    lose, back, link, ends
):
    machine = waiting(what=TWICE)
    lose(machine)
    assert stored(ends(machine))[-1] == cj.JobStatus(JOB, "paused", link, stored_answers(ends))
    assert goes_on(link) and not resume_follows(pause_advice(link))


def stored_answers(ends):
    return RoundAnswers(4, 0, 0) if ends is by_shortfall else None


@pytest.mark.parametrize(("lose", "back", "link"), OUTAGES)
@pytest.mark.parametrize("ends", [by_shortfall, by_a_poor_batch])
def test_an_attempt_with_an_outage_that_is_over_takes_no_retry(lose, back, link, ends):
    machine = waiting(what=TWICE)
    lose(machine)
    back(machine)
    assert tasks(ends(machine)) == [cj.SealRound(JOB, 1, 2)]
    assert machine.courses[JOB].retries_left == 1
    broadcast(machine, cj.SealRound(JOB, 1, 2))
    assert tasks(ends(machine, 2)) == [cj.SealRound(JOB, 1, 3)]  # nothing was down: it takes one
    assert machine.courses[JOB].retries_left == 0


@pytest.mark.parametrize(("lose", "back", "link"), OUTAGES)
def test_silence_counts_from_the_links_return(lose, back, link):
    machine = waiting()
    lose(machine)
    assert timers(back(machine))["watchdog"] > 0
    assert machine.courses[JOB].state is cj.CloudState.WAITING
    assert tasks(absorb(machine)) == [cj.SealRound(JOB, 2, 1)]


def test_no_job_is_announced_again_and_again_into_a_link_that_is_down():
    machine = cloud()
    lose_own(machine)
    start(machine, TWICE)
    seal(machine, cj.SealJob(JOB))
    assert stored(fire(machine, "watchdog"))[-1].reason == OWN_LINK


def test_a_cell_is_reached_once_its_links_are_up_and_its_proxy_spoke():
    machine = waiting()
    assert machine.unreached == []
    for lose, back, _ in OUTAGES:
        lose(machine)
        assert machine.unreached == [""]
        back(machine)
        edge_is_back(machine)  # any word of the proxy
        assert machine.unreached == []


def test_a_proxy_that_was_silent_is_to_say_something_first():
    machine = waiting(what=cj.StartJob(JOB, 1, 1, exchanges=2, retries=0))
    assert stored(by_silence(machine))[-1].reason == SILENT
    assert machine.unreached == [""]
    edge_is_back(machine)
    assert machine.unreached == []


def test_a_proxy_tells_how_its_link_to_the_devices_stands():
    machine = proxy()
    cloud_up, up = fx.PeerConnected(fx.CloudAddress()), fx.PeerConnected(fx.AllDevices())
    lost = fx.PeerLost(fx.AllDevices())
    assert bodies(machine.handle(cloud_up, 0.0), LinkState) == [LinkState(True)]
    assert bodies(machine.handle(lost, 0.0), LinkState) == [LinkState(False)]
    assert bodies(machine.handle(lost, 0.0), LinkState) == []  # known
    assert bodies(machine.handle(cloud_up, 0.0), LinkState) == [LinkState(False)]
    assert bodies(machine.handle(up, 0.0), LinkState) == [LinkState(True)]
    assert bodies(machine.handle(up, 0.0), LinkState) == []


@pytest.mark.parametrize(
    "reason",
    [
        "the proxy refused the broadcast: closed_job",
        "the proxy refused the broadcast: sets_below_floor",
        "the proxy refused to unmask: unknown_round",
    ],
)
def test_what_is_to_be_cancelled_is_not_to_be_resumed_then(reason):
    assert not resume_follows(pause_advice(reason)) and not goes_on(reason)


def test_what_a_person_mends_is_resumed_by_a_person():
    for reason in ("the proxy refused the broadcast: spool_full", "anything else"):
        assert resume_follows(pause_advice(reason))
