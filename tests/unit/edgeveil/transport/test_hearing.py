"""When a silent link asks for a sign, and when it is made anew."""

from __future__ import annotations

from itertools import pairwise

import pytest

from edgeveil.transport.mqtt_link import LONGEST_SILENCE_S, Hearing

SILENCE_S = 600.0
SOON_S = SILENCE_S / 10


@pytest.fixture
def link() -> Hearing:
    """One that has heard a word at second 0."""
    made = Hearing(SILENCE_S, lambda low, _high: low)
    made.heard(0.0)
    return made


def renewals(link: Hearing, until_s: int, answers: bool = False) -> list[int]:
    """When it would be made anew, where whatever asks says something."""
    found = []
    for now_s in range(until_s):
        due = link.due(now_s)
        if due == "ask":
            link.said(now_s, b"a word")
            if answers:
                link.heard(now_s)
        elif due == "renew":
            found.append(now_s)
            link.connected(now_s)
            link.said(now_s, b"a word")
    return found


def test_after_silence_a_sign_is_asked_for_once(link: Hearing) -> None:
    assert link.due(SILENCE_S - 1) is None
    assert link.due(SILENCE_S) == "ask"
    assert link.due(SILENCE_S + 1) is None


def test_what_is_repeated_without_an_answer_is_looked_after_sooner(link: Hearing) -> None:
    for now_s in (90.0, 100.0, 110.0):
        link.said(now_s, b"a question")
    assert link.due(100.0 + SOON_S - 1) is None
    assert link.due(100.0 + SOON_S) == "ask"


def test_words_that_want_no_answer_change_nothing(link: Hearing) -> None:
    for number in range(300):
        link.said(number, str(number).encode())
    assert link.due(SILENCE_S - 1) is None


def test_what_is_said_again_after_a_word_was_heard_is_no_repetition(link: Hearing) -> None:
    link.said(10.0, b"the same answer")
    link.heard(20.0)
    link.said(20.0, b"the same answer")
    assert link.due(SILENCE_S) is None
    assert link.due(20.0 + SILENCE_S) == "ask"


def test_without_an_answer_the_link_is_made_anew(link: Hearing) -> None:
    assert link.due(SILENCE_S) == "ask"
    link.said(SILENCE_S, b"a word")
    assert link.due(SILENCE_S + SOON_S - 1) is None
    assert link.due(SILENCE_S + SOON_S) == "renew"


def test_an_answer_in_time_is_all_that_is_wanted(link: Hearing) -> None:
    assert renewals(link, 86_400, answers=True) == []


def test_who_says_nothing_is_owed_no_answer(link: Hearing) -> None:
    assert [due for now_s in range(86_400) if (due := link.due(now_s)) == "renew"] == []


def test_a_peer_that_is_away_costs_ever_fewer_connections(link: Hearing) -> None:
    times = renewals(link, 86_400)
    waits = [later - before for before, later in pairwise(times)]
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_SILENCE_S / 10
    link.heard(86_400)
    assert link.due(86_400 + SILENCE_S) == "ask"  # as at first


def test_a_fleet_does_not_come_at_once() -> None:
    first, last = (Hearing(SILENCE_S, lambda low, high, at=at: (low, high)[at]) for at in (0, 1))
    for link in (first, last):
        link.heard(0.0)
    assert first.due(SILENCE_S) == "ask"
    assert last.due(SILENCE_S) is None
    assert last.due(2 * SILENCE_S) == "ask"
