"""Log-ins to a page: how long they hold, and what they are worth when they end."""

import re

from edgeveil_edge.page_sessions import MOST, SESSION_S, TICKET_S, OwnerSessions


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


def id_of(header):
    return re.fullmatch(r"page=([A-Za-z0-9_-]{43}); .*", header)[1]


def test_a_session_holds_until_its_time_is_over():
    clock = Clock()
    sessions = OwnerSessions("page", clock)
    one, other = id_of(sessions.begin()), id_of(sessions.begin())
    assert one != other
    clock.now_s += SESSION_S - 1
    assert sessions.knows(one) and sessions.knows(other)
    clock.now_s += 1
    assert not sessions.knows(one)


def test_scripts_and_other_sites_do_not_see_the_cookie():
    parts = OwnerSessions("page", Clock()).begin().split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(parts)


def test_who_logs_out_is_out_and_nobody_else():
    sessions = OwnerSessions("page", Clock())
    one, other = id_of(sessions.begin()), id_of(sessions.begin())
    assert sessions.end(one).startswith("page=; Max-Age=0;")
    assert not sessions.knows(one) and sessions.knows(other)
    sessions.end("unknown")


def test_what_was_never_given_out_opens_nothing():
    sessions = OwnerSessions("page", Clock())
    ticket = sessions.ticket()
    for secret in ("", "x", "\udcff", ticket):
        assert not sessions.knows(secret)
    assert not sessions.redeem(id_of(sessions.begin()))


def test_a_ticket_is_good_once_and_for_a_minute():
    clock = Clock()
    sessions = OwnerSessions("page", clock)
    one, late = sessions.ticket(), sessions.ticket()
    assert [sessions.redeem(one), sessions.redeem(one)] == [True, False]
    clock.now_s += TICKET_S
    assert not sessions.redeem(late)


def test_what_is_kept_is_bounded_and_the_oldest_makes_room():
    sessions = OwnerSessions("page", Clock())
    all_of_them = [id_of(sessions.begin()) for _ in range(MOST + 1)]
    assert [sessions.knows(one) for one in all_of_them] == [False] + MOST * [True]
