"""Access rules and users of a broker, for both engines.

Passwords are kept as mosquitto keeps them: `$7$iterations$salt$PBKDF2-HMAC-SHA512`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgeveil.claim import USER as CLAIM_USER
from edgeveil.errors import BrokerError, UsageError
from edgeveil.transport.link import Topics

Access = Literal["read", "write"]

WIRETAP = "wiretap"
_ITERATIONS = 101  # as mosquitto_passwd; passwords made here are random keys
_MAX_ITERATIONS = 1_000_000
_SALT_BYTES = 12


@dataclass(frozen=True)
class Rule:
    """Permission for `user` (None: everyone) on a topic filter; `%u` is the own name."""

    user: str | None
    access: Access
    topic: str


def of_cell(name: str, cell: str) -> str:
    """Return the name of a cell's party or broker: `proxy`, or `proxy-north`."""
    return f"{name}-{cell}" if cell else name


def side_of(domain: str) -> str:
    """Return the part before the cell: a broker's `edge` or `cloud`, a party's role."""
    return domain.partition("-")[0]


def _edge_rules(cell: str) -> tuple[Rule, ...]:
    topics, proxy = Topics(cell), of_cell("proxy", cell)
    return (
        Rule(None, "write", topics.device_up("%u")),
        Rule(None, "read", topics.device_down("%u")),
        Rule(None, "read", topics.all_down),
        Rule(None, "read", topics.any_bucket),
        Rule(None, "write", topics.renewal("%u")),
        Rule(None, "write", topics.claims_of_before),
        Rule(None, "read", topics.claims_down),
        Rule(CLAIM_USER, "write", topics.any_claim),
        Rule(proxy, "read", topics.any_renewal),
        Rule(proxy, "read", topics.any_claim),
        Rule(proxy, "read", topics.claims_of_before),
        Rule(proxy, "write", topics.claims_down),
        Rule(proxy, "read", topics.devices_up),
        Rule(proxy, "write", topics.device_down("+")),
        Rule(proxy, "write", topics.all_down),
        Rule(proxy, "write", topics.any_bucket),
        Rule(proxy, "read", topics.proxies),
        Rule(proxy, "write", topics.proxies),
    )


def _cloud_rules(cell: str) -> tuple[Rule, ...]:
    topics, proxy = Topics(cell), of_cell("proxy", cell)
    return (
        Rule("cloud", "write", topics.cloud_out),
        Rule("cloud", "read", topics.cloud_in),
        Rule(proxy, "write", topics.cloud_in),
        Rule(proxy, "read", topics.cloud_out),
    )


def rules_for(
    acl: str | None, cells: Sequence[str] = ("",), *, wiretap: bool = False
) -> tuple[Rule, ...] | None:
    """Return the access list of a side for these cells; None without one.

    Patterns contain a device's id but not its cell: at a shared broker a device may publish in its
    own name in each cell, and receive the broadcasts of each, which are sealed."""
    if acl is None:
        return None
    rules = _edge_rules if acl == "edge" else _cloud_rules
    found = tuple(rule for cell in cells for rule in rules(cell))
    return (*found, Rule(WIRETAP, "read", "#")) if wiretap else found


def allows(rules: tuple[Rule, ...], user: str, access: Access, topic: str) -> bool:
    """Return whether a rule covers all of `topic` (a name, or a filter to subscribe to)."""
    if not _plain(user):
        return False
    return any(
        rule.access == access
        and rule.user in (None, user)
        and covers(rule.topic.replace("%u", user), topic)
        for rule in rules
    )


def covers(allowed: str, requested: str) -> bool:
    """Return whether `allowed` matches every topic that `requested` matches."""
    allowed_levels, levels = allowed.split("/"), requested.split("/")
    for position, level in enumerate(allowed_levels):
        if level == "#":
            return not levels[0].startswith("$")
        if position >= len(levels) or levels[position] == "#":
            return False
        if level not in ("+", levels[position]):
            return False
    return len(levels) == len(allowed_levels)


def acl_text(rules: tuple[Rule, ...]) -> str:
    lines = [f"pattern {rule.access} {rule.topic}" for rule in rules if rule.user is None]
    for user in dict.fromkeys(rule.user for rule in rules if rule.user is not None):
        lines += ["", f"user {user}"]
        lines += [f"topic {rule.access} {rule.topic}" for rule in rules if rule.user == user]
    return "\n".join(lines) + "\n"


def hash_password(password: str) -> str:
    salt = os.urandom(_SALT_BYTES)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode("utf-8"), salt, _ITERATIONS)
    salt_text, digest_text = (base64.b64encode(raw).decode("ascii") for raw in (salt, digest))
    return f"$7${_ITERATIONS}${salt_text}${digest_text}"


def password_matches(hashed: str, password: str) -> bool:
    """Return whether the password has this hash; False for a hash of another form."""
    if (parts := _hash_parts(hashed)) is None:
        return False
    iterations, salt, digest = parts
    tried = hashlib.pbkdf2_hmac("sha512", password.encode("utf-8"), salt, iterations)
    return hmac.compare_digest(tried, digest)


def users_text(users: Mapping[str, str]) -> str:
    """Return a users file; raises UsageError for a name that is unfit for topics."""
    for name in users:
        if not _plain(name):
            fix = "use letters, digits, '-', '_' and '.'"
            raise UsageError(f"the user name '{name}' is not allowed in a topic", fix=fix)
    return "".join(f"{name}:{hash_password(password)}\n" for name, password in users.items())


def read_users(path: Path) -> dict[str, str]:
    """Return hashes by name from `name:password` lines, hashed or plain; raises BrokerError."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fix = "provision the site first, or correct users_file"
        raise BrokerError("the users file cannot be read", where=str(path), fix=fix) from error
    users = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, password = line.partition(":")
        if not colon or not password or not _plain(name):
            what, fix = "not a 'name:password' line", "correct or remove it"
            raise BrokerError(what, where=f"{path}:{number}", fix=fix)
        users[name] = password if _hash_parts(password) else hash_password(password)
    return users


def _hash_parts(hashed: str) -> tuple[int, bytes, bytes] | None:
    parts = hashed.split("$")
    if len(parts) != 5 or parts[:2] != ["", "7"] or not parts[2].isascii():
        return None
    try:
        iterations = int(parts[2])
        salt = base64.b64decode(parts[3], validate=True)
        digest = base64.b64decode(parts[4], validate=True)
    except (ValueError, binascii.Error):
        return None
    usable = 1 <= iterations <= _MAX_ITERATIONS and len(digest) == 64
    return (iterations, salt, digest) if usable else None


def _plain(name: str) -> bool:
    return bool(name) and not any(sign in "+#/$:" or sign.isspace() for sign in name)
