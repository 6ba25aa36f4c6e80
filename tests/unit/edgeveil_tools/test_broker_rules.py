"""Access rules and the users file, as both engines use them."""

import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeveil.errors import BrokerError, UsageError
from edgeveil_tools.site.broker_rules import (
    allows,
    covers,
    hash_password,
    password_matches,
    read_users,
    rules_for,
    users_text,
)
from edgeveil_tools.site.brokers import defer_accepts

LEVEL = st.sampled_from(["a", "b", "up", "", "+"])
FILTER = st.builds(
    lambda levels, tail: "/".join(levels + tail),
    st.lists(LEVEL, min_size=1, max_size=3),
    st.sampled_from([[], ["#"]]),
)


def matches(pattern, topic):
    """The standard's matching, written for topics without wildcards."""
    if not pattern:
        return not topic
    if pattern[0] == "#":
        return True
    return bool(topic) and pattern[0] in ("+", topic[0]) and matches(pattern[1:], topic[1:])


@given(
    allowed=FILTER, requested=FILTER, topic=st.lists(st.sampled_from(["a", "b", "up"]), max_size=4)
)
def test_a_covered_filter_reaches_no_topic_beyond(allowed, requested, topic):
    if covers(allowed, requested) and matches(requested.split("/"), topic):
        assert matches(allowed.split("/"), topic)


@pytest.mark.parametrize(
    ("user", "access", "topic", "allowed"),
    [
        ("ada", "write", "edgeveil/v1/d/ada/up", True),
        ("ada", "read", "edgeveil/v1/d/ada/down", True),
        ("ada", "read", "edgeveil/v1/all/down", True),
        ("ada", "write", "edgeveil/v1/d/bob/up", False),
        ("ada", "read", "edgeveil/v1/d/ada/up", False),
        ("ada", "write", "edgeveil/v1/all/down", False),
        ("ada", "read", "edgeveil/v1/d/+/down", False),
        ("ada", "read", "#", False),
        ("+", "read", "edgeveil/v1/d/+/down", False),
        ("#", "read", "edgeveil/v1/d/#/down", False),
        ("a/b", "write", "edgeveil/v1/d/a/b/up", False),
        ("", "write", "edgeveil/v1/d//up", False),
        ("proxy", "read", "edgeveil/v1/d/+/up", True),
        ("proxy", "write", "edgeveil/v1/d/ada/down", True),
        ("proxy", "read", "edgeveil/v1/d/#", False),
        ("wiretap", "read", "#", False),
    ],
)
def test_the_edge_side(user, access, topic, allowed):
    assert allows(rules_for("edge"), user, access, topic) is allowed


@pytest.mark.parametrize(
    ("acl", "user", "access", "topic", "allowed"),
    [
        ("edge", "ada", "write", "edgeveil/v1/c/north/d/ada/up", True),
        ("edge", "ada", "read", "edgeveil/v1/c/north/all/down", True),
        ("edge", "ada", "read", "edgeveil/v1/c/north/claim/down", True),
        ("edge", "ada", "write", "edgeveil/v1/c/south/d/bob/up", False),
        ("edge", "ada", "read", "edgeveil/v1/c/+/all/down", False),
        ("edge", "ada", "write", "edgeveil/v1/c/east/d/ada/up", False),
        ("edge", "ada", "write", "edgeveil/v1/d/ada/up", False),
        ("edge", "proxy-north", "read", "edgeveil/v1/c/north/d/+/up", True),
        ("edge", "proxy-north", "write", "edgeveil/v1/c/north/all/down", True),
        ("edge", "proxy-north", "read", "edgeveil/v1/c/south/d/+/up", False),
        ("edge", "proxy-north", "write", "edgeveil/v1/c/south/all/down", False),
        ("edge", "proxy-north", "write", "edgeveil/v1/c/south/d/ada/down", False),
        ("edge", "proxy-north", "read", "edgeveil/v1/c/south/claim/up", False),
        ("edge", "proxy", "read", "edgeveil/v1/d/+/up", False),
        ("cloud", "proxy-north", "write", "edgeveil/v1/c/north/cloud/in", True),
        ("cloud", "proxy-north", "write", "edgeveil/v1/c/south/cloud/in", False),
        ("cloud", "proxy-north", "read", "edgeveil/v1/c/south/cloud/out", False),
        ("cloud", "cloud", "write", "edgeveil/v1/c/south/cloud/out", True),
        ("cloud", "cloud", "read", "edgeveil/v1/c/+/cloud/in", False),
    ],
)
def test_two_cells_at_one_broker(acl, user, access, topic, allowed):
    assert allows(rules_for(acl, ("north", "south")), user, access, topic) is allowed


@pytest.mark.parametrize(
    ("user", "access", "topic", "allowed"),
    [
        ("proxy", "read", "edgeveil/v1/d/+/up", True),  # a cell without a name, beside others
        ("proxy-north", "read", "edgeveil/v1/c/north/d/+/up", True),
        ("proxy", "read", "edgeveil/v1/c/north/d/+/up", False),
        ("wiretap", "read", "#", True),
        ("wiretap", "read", "$SYS/#", False),
        ("wiretap", "write", "edgeveil/v1/all/down", False),
        ("ada", "read", "#", False),
    ],
)
def test_an_unnamed_cell_and_a_wiretap(user, access, topic, allowed):
    assert allows(rules_for("edge", ("", "north"), wiretap=True), user, access, topic) is allowed


# Without NUL: HMAC fills a short key up with zeros, so that "" and "\0" are the same key.
PASSWORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(PASSWORDS, PASSWORDS)
def test_only_the_password_itself_matches(password, other):
    hashed = hash_password(password)
    assert password_matches(hashed, password)
    assert password_matches(hashed, other) == (other == password)
    assert hash_password(password) != hashed


@pytest.mark.parametrize(
    "hashed",
    ["", "plain", "$7$x$y$z", "$7$0$AAAA$AAAA", "$6$AAAA$AAAA", "$7$99999999999$AA==$AA=="],
)
def test_a_hash_of_another_form_matches_nothing(hashed):
    assert not password_matches(hashed, "plain")
    assert not password_matches(hashed, "")


def test_mosquitto_writes_the_same_form(tmp_path):
    assert shutil.which("mosquitto_passwd"), "install mosquitto"
    path = tmp_path / "users"
    subprocess.run(["mosquitto_passwd", "-c", "-b", path, "ada", "ada-word"], check=True)
    assert password_matches(read_users(path)["ada"], "ada-word")
    assert not password_matches(read_users(path)["ada"], "bob-word")


def test_a_users_file_may_hold_plain_and_hashed_passwords(tmp_path):
    path = tmp_path / "users"
    path.write_text(users_text({"ada": "one"}) + "\n# a comment\nbob:two:with:colons\n")
    users = read_users(path)
    assert password_matches(users["ada"], "one")
    assert password_matches(users["bob"], "two:with:colons")
    assert "two" not in users["bob"]


@pytest.mark.parametrize("line", ["ada", "ada:", ":word", "a+b:word", "a/b:word", "a b:word"])
def test_a_broken_line_is_named(tmp_path, line):
    path = tmp_path / "users"
    path.write_text(f"bob:word\n{line}\n")
    with pytest.raises(BrokerError) as caught:
        read_users(path)
    assert caught.value.where == f"{path}:2"


@pytest.mark.parametrize("name", ["", "a+", "#", "a/b", "a:b", "a b", "a\n", "$a"])
def test_a_name_unfit_for_topics_is_refused(name):
    with pytest.raises(UsageError, match="cannot stand in a topic"):
        users_text({name: "word"})


# It listens, and opens and closes something else all the time, as a broker does that is starting.
BUSY = """
import socket
listening = socket.create_server(("127.0.0.1", 0))
print("ready", flush=True)
while True:
    socket.socket().close()
    open("/dev/null").close()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's own")
def test_what_is_closed_meanwhile_is_passed_over():
    child = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert {defer_accepts(child.pid) for _ in range(2000)} == {1}
    finally:
        child.kill()
        child.communicate()
