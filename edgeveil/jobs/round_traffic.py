"""Whether a round fits the limits of a managed broker; lower bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from edgeveil.config.broker_profiles import PROFILES, BrokerProfile, ProfileName


@dataclass(frozen=True)
class RoundTraffic:
    """One exchange of a job: a broadcast to all, and `uploads` of at most `upload_bytes` each."""

    broadcast_bytes: int
    upload_bytes: int
    uploads: int
    deadline_s: float
    exchanges: int
    """Of the whole job."""


@dataclass(frozen=True)
class BrokerUse:
    """A broker that a job's rounds pass; `where` is its block in a site file."""

    where: str
    profile: ProfileName
    part_bytes: int
    links: int = 1
    """Of the proxy."""
    devices: int = 0
    """That are connected to it; 0: the cloud's broker, which has none."""


def misfits(traffic: RoundTraffic, use: BrokerUse) -> Iterator[tuple[str, str]]:
    """(what does not fit, how to change it)."""
    profile = PROFILES[use.profile]
    account, name = profile.account, f"{use.where} ({use.profile})"
    elsewhere, closes_s = "or use a broker without this limit", traffic.deadline_s
    # One more: the cloud's own, or at the devices' broker the proxy's that hears of another proxy.
    connections = use.devices + use.links + 1
    if account.connections is not None and connections > account.connections:
        text = f"{name} takes {account.connections} connections of an account, the fleet has"
        yield f"{text} {connections}", f"connect fewer devices, split the fleet, {elsewhere}"
    needed_s = _needed_s(traffic, use, profile)
    if needed_s > closes_s:
        text = f"a round needs {needed_s:.0f} s or more of {name}, and closes after {closes_s:g} s"
        fix = f"set round.deadline_s above {needed_s:.0f}, learn a smaller model, {elsewhere}"
        yield f"{text}: a broadcast of {traffic.broadcast_bytes} bytes, and uploads", fix
    sent = traffic.uploads * traffic.upload_bytes
    delivered = traffic.broadcast_bytes * max(1, use.devices) + sent
    month = traffic.exchanges * (traffic.broadcast_bytes + sent + delivered)
    if account.bytes_per_month is not None and month > account.bytes_per_month:
        text = f"the job moves {month / 1e9:.1f} GB over {name}, an account has"
        text += f" {account.bytes_per_month / 1e9:g} GB a month"
        yield text, f"plan fewer rounds, learn a smaller model, {elsewhere}"


def _needed_s(traffic: RoundTraffic, use: BrokerUse, profile: BrokerProfile) -> float:
    """A device uploads once it has the broadcast; the account's limits hold for all together."""
    down, up = _parts(traffic.broadcast_bytes, use), _parts(traffic.upload_bytes, use)
    one = _seconds(down, traffic.broadcast_bytes, profile.publishes_per_s, profile.bytes_per_s)
    if use.devices:
        one += _seconds(up, traffic.upload_bytes, profile.publishes_per_s, profile.bytes_per_s)
    else:  # the batch, by the links of the proxy
        all_up, all_bytes = traffic.uploads * up, traffic.uploads * traffic.upload_bytes
        batch = _seconds(all_up, all_bytes, profile.publishes_per_s, profile.bytes_per_s)
        one = max(one, batch / use.links)
    account = profile.account
    messages = down + traffic.uploads * up
    if account.counts_deliveries:
        messages += down * max(1, use.devices) + traffic.uploads * up
    size = traffic.broadcast_bytes + traffic.uploads * traffic.upload_bytes
    return max(one, _seconds(messages, size, account.messages_per_s, account.bytes_per_s))


def _parts(size_bytes: int, use: BrokerUse) -> int:
    return -(-size_bytes // use.part_bytes)


def _seconds(messages: int, size_bytes: int, per_s: int | None, bytes_per_s: int | None) -> float:
    return max(messages / (per_s or math.inf), size_bytes / (bytes_per_s or math.inf))
