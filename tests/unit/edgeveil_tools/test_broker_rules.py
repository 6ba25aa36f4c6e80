"""Access rules and the users file, as both engines use them."""

import subprocess

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


# (side, cells, wiretap) of a broker: who may do what, and who may not.
RULES = {
    ("edge", ("",), False): (
        """ada write d/ada/up, ada read d/ada/down, ada read all/down, proxy read d/+/up,
        proxy write d/ada/down""",
        """ada write d/bob/up, ada read d/ada/up, ada write all/down, ada read d/+/down,
        + read d/+/down, # read d/#/down, a/b write d/a/b/up, proxy read d/#""",
    ),
    ("edge", ("north", "south"), False): (
        """ada write c/north/d/ada/up, ada read c/north/all/down, ada read c/north/claim/down,
        proxy-north read c/north/d/+/up, proxy-north write c/north/all/down""",
        """ada write c/south/d/bob/up, ada read c/+/all/down, ada write c/east/d/ada/up,
        ada write d/ada/up, proxy-north read c/south/d/+/up, proxy-north write c/south/all/down,
        proxy-north write c/south/d/ada/down, proxy-north read c/south/claim/up,
        proxy read d/+/up""",
    ),
    ("cloud", ("north", "south"), False): (
        "proxy-north write c/north/cloud/in, cloud write c/south/cloud/out",
        """proxy-north write c/south/cloud/in, proxy-north read c/south/cloud/out,
        cloud read c/+/cloud/in""",
    ),
    ("edge", ("", "north"), True): (
        "proxy read d/+/up, proxy-north read c/north/d/+/up",
        "proxy read c/north/d/+/up, wiretap write all/down",
    ),
}


@pytest.mark.parametrize("broker", RULES)
def test_who_may_read_and_write_what(broker):
    side, cells, wiretap = broker
    rules = rules_for(side, cells, wiretap=wiretap)
    for lines, allowed in zip(RULES[broker], (True, False), strict=True):
        for line in lines.split(","):
            user, access, topic = line.split()
            assert allows(rules, user, access, f"edgeveil/v1/{topic}") is allowed, line
    assert not allows(rules, "", "write", "edgeveil/v1/d//up")
    assert allows(rules, "wiretap", "read", "#") is wiretap
    assert not any(allows(rules, "ada", "read", topic) for topic in ("#", "$SYS/#"))
    assert not allows(rules, "wiretap", "read", "$SYS/#")


# Without NUL: HMAC fills a short key up with zeros, so that "" and "\0" are the same key.
PASSWORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(PASSWORDS, PASSWORDS)
def test_only_the_password_itself_matches(password, other):
    hashed = hash_password(password)
    assert password_matches(hashed, password)
    assert password_matches(hashed, other) == (other == password)
    assert hash_password(password) != hashed


def test_a_users_file_holds_plain_words_and_hashes_as_mosquitto_makes_them(tmp_path):
    path = tmp_path / "users"
    subprocess.run(["mosquitto_passwd", "-c", "-b", path, "eve", "eve-word"], check=True)
    text = path.read_text() + users_text({"ada": "one"})
    path.write_text(text + "\n# a comment\nbob:two:with:colons\n")
    users = read_users(path)
    for name, word in (("ada", "one"), ("bob", "two:with:colons"), ("eve", "eve-word")):
        assert password_matches(users[name], word) and word not in users[name]
        assert not password_matches(users[name], "another")
    for hashed in ("", "plain", "$7$x$y$z", "$7$0$AAAA$AAAA", "$6$AAAA$AAAA", "$7$999999999$A=$A="):
        assert not any(password_matches(hashed, word) for word in ("plain", ""))
    for name in ("", "a+", "#", "a/b", "a:b", "a b", "a\n", "$a"):
        with pytest.raises(UsageError):
            users_text({name: "word"})
    for line in ("ada", "ada:", ":word", "a+b:word"):
        path.write_text(f"bob:word\n{line}\n")
        with pytest.raises(BrokerError) as caught:
            read_users(path)
        assert caught.value.where == f"{path}:2"
