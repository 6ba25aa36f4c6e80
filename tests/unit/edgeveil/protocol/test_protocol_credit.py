"""Credit: bounded, in turn, and not held up by those who bring nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgeveil.protocol.proxy_uploads import SLOW_PATIENCE, SLOW_SHARE, Credit

PATIENCE_S = 5.0


def credit(limit_bytes=1000):
    return Credit(limit_bytes, PATIENCE_S)


def test_first_come_first_served_up_to_the_limit():
    it = credit()
    for who in "abcde":
        it.want(who, 300)
    assert it.deal(0.0) == ["a", "b", "c"] and it.granted_bytes == 900
    assert it.deal(0.0) == []
    it.arrived("b", 300, 1.0)
    assert it.deal(1.0) == ["d"]


def test_who_had_a_turn_waits_behind_those_who_had_none():
    it = credit(300)
    it.want("large", 300)
    assert it.deal(0.0) == ["large"]
    for who in ("x", "y"):
        it.want(who, 300)
    it.arrived("large", 300, 0.0)
    it.want("large", 300)
    turns = []
    for _ in range(3):
        (who,) = it.deal(0.0)
        it.leave(who)
        turns.append(who)
    assert turns == ["x", "y", "large"]


def test_a_wish_above_the_limit_is_granted_alone():
    it = credit(100)
    it.want("a", 5000)
    it.want("b", 10)
    assert it.deal(0.0) == ["a"] and it.deal(0.0) == []
    it.leave("a")
    assert it.deal(0.0) == ["b"] and it.granted_bytes == 10


def test_a_repeated_wish_keeps_its_place():
    it = credit(100)
    for who in ("a", "b", "c"):
        it.want(who, 100)
    it.deal(0.0)
    it.want("b", 100)
    it.leave("a")
    assert it.deal(0.0) == ["b"]


def test_a_grant_without_progress_is_taken_back_and_progress_keeps_it():
    it = credit()
    it.want("silent", 600)
    it.want("busy", 400)
    it.want("next", 500)
    assert it.deal(0.0) == ["silent", "busy"]
    it.arrived("busy", 10, 4.0)
    assert it.take_back(PATIENCE_S) == ["silent"]
    assert not it.holds("silent") and it.holds("busy")
    assert it.deal(PATIENCE_S) == ["next"]


def test_however_many_are_slow_the_others_have_most_of_the_credit():
    it = credit()
    slow = [f"slow{number}" for number in range(50)]
    now_s = 0.0
    for who in slow:
        it.want(who, 100)
    while len(it._known_slow) < len(slow):
        it.deal(now_s)
        now_s += PATIENCE_S
        for who in it.take_back(now_s):
            it.want(who, 100)
    it.deal(now_s)
    assert it.granted_bytes <= it.limit_bytes // SLOW_SHARE
    for number in range(20):
        it.want(f"fast{number}", 100)
    dealt = it.deal(now_s)
    assert len(dealt) >= 7 and all(who.startswith("fast") for who in dealt)
    for who in dealt:
        it.arrived(who, 100, now_s)
        it.leave(who)
    assert len(it.deal(now_s)) == len(dealt)


def test_the_slow_are_waited_for_longer_and_are_slow_no_more_once_done():
    it = credit()
    it.want("a", 100)
    it.deal(0.0)
    assert it.take_back(PATIENCE_S) == ["a"]
    it.want("a", 100)
    assert it.deal(PATIENCE_S) == ["a"]
    assert it.take_back(2 * PATIENCE_S) == []
    assert it.take_back((1 + SLOW_PATIENCE) * PATIENCE_S) == ["a"]
    it.done("a")
    it.want("a", 100)
    it.deal(100.0)
    assert it.take_back(100.0 + PATIENCE_S) == ["a"]


def test_who_leaves_and_comes_again_is_as_slow_as_before():
    it = credit()
    it.want("a", 100)
    it.deal(0.0)
    it.take_back(PATIENCE_S)
    it.leave("a")
    it.want("a", 100)
    assert it.deal(10.0) == ["a"]
    assert it.take_back(10.0 + PATIENCE_S) == []


def test_what_comes_after_its_grant_was_taken_back_counts_for_nothing():
    it = credit()
    it.want("a", 100)
    it.deal(0.0)
    it.take_back(PATIENCE_S)
    it.arrived("a", 100, PATIENCE_S)
    it.arrived("stranger", 100, PATIENCE_S)
    assert it.granted_bytes == 0 and it.idle


steps = st.tuples(
    st.sampled_from(["want", "arrived", "leave", "wait"]),
    st.integers(0, 6),
    st.integers(1, 400),
)


@given(st.lists(steps, max_size=80))
def test_the_bound_holds_whatever_happens(course):
    it, now_s = credit(), 0.0
    for what, number, size_bytes in course:
        who = str(number)
        if what == "want":
            it.want(who, size_bytes)
        elif what == "arrived":
            it.arrived(who, size_bytes, now_s)
        elif what == "leave":
            it.leave(who)
        else:
            now_s += size_bytes / 40
            for lost in it.take_back(now_s):
                it.want(lost, size_bytes)
        it.deal(now_s)
        lanes = (it._brisk, it._slow)
        running = [grant.left_bytes for lane in lanes for grant in lane.granted.values()]
        assert it.granted_bytes == sum(running)
        assert it.granted_bytes <= it.limit_bytes + 400  # each lane may always serve one
        assert all(left >= 0 for left in running)


def test_what_the_slow_hold_beyond_their_quarter_is_not_at_the_others_cost():
    it = credit()
    it.want("slow", 1000)
    it.deal(0.0)
    it.take_back(PATIENCE_S)
    it.want("slow", 1000)  # a wish that cannot be smaller
    assert it.deal(PATIENCE_S) == ["slow"]
    for who in "abcd":
        it.want(who, 250)
    assert it.deal(PATIENCE_S) == ["a", "b", "c"]
