"""What a thief does who holds the cloud's release key and its account at the broker.

A release is signed with the newest number that there is, so that nothing that the cloud says
afterwards counts as newer (a fast-forward attack).
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from edgeveil.crypto.keys import SealingKey, SigningKey
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import ExchangeId, Manifest, Signer, encode
from edgeveil.protocol.sealed import ReleasePackage, Terms, encode_package, seal_broadcast
from edgeveil.protocol.transfer import part_bytes, sends
from edgeveil.sites.cloud import CloudSite
from edgeveil.sites.files import load_site
from edgeveil.transport.link import LinkSettings, Topics
from edgeveil.transport.mqtt_link import MqttLink, link_settings

AHEAD_S = 20 * 3600.0  # a proxy takes no number that is a day ahead of its clock
_NAME = "thief"


class LeakedKey:
    """All that was taken from a cloud's box at one moment: key, account, release, sealing keys."""

    def __init__(self, config: Path, state: Path) -> None:
        site = load_site(config)
        if not isinstance(site, CloudSite):
            raise TypeError(config)
        self._packet_bytes = site.limits.packet_bytes
        self._link = link_settings(site.broker, _NAME, self._packet_bytes)
        self._key = SigningKey.load(state / "releases.key")
        with closing(sqlite3.connect(f"file:{state / 'cloud.sqlite'}?mode=ro", uri=True)) as db:
            keys = db.execute("SELECT public_key FROM enrolled_keys").fetchall()
            (self._onnx,) = db.execute("SELECT onnx FROM releases").fetchone()
        self._recipients = [SealingKey(bytes(key)) for (key,) in keys]

    def forged(self) -> tuple[Manifest, bytes]:
        """A release that opens and runs at every device, and its sealed bytes, with about the
        largest number that the proxy takes."""
        sequence = int((time.time() + AHEAD_S) * 1000)
        package = ReleasePackage("stolen", self._onnx, "digits")
        at = ExchangeId(secrets.token_bytes(16), 0, 1)
        terms = Terms("release", at, sequence, bytes(32), "release")
        size = part_bytes(self._packet_bytes)
        manifest, data, _ = seal_broadcast(terms, encode_package(package), self._recipients, size)
        return manifest, data

    def publish(self) -> str:
        """Say one; its job's number on the wire (hex)."""
        manifest, data = self.forged()
        header = Signer("cloud", self._key).header(manifest)
        packets = sends(
            fx.ProxyAddress(), header, manifest.blob, data, self._packet_bytes, push=True
        )
        frames = [encode(one.message) for one in packets if isinstance(one, fx.Send)]
        asyncio.run(_say(replace(self._link, keepalive_s=10), frames))
        return manifest.at.job_id.hex()


async def _say(settings: LinkSettings, frames: list[bytes]) -> None:
    link = MqttLink(settings)
    link.on_message = lambda _topic, _payload: None
    link.on_state = lambda _up, _why: None
    await link.connect_or_raise()
    work = asyncio.ensure_future(link.run_forever())
    try:
        for frame in frames:
            await link.publish(Topics().cloud_out, frame)
        while link.unacknowledged:
            await asyncio.sleep(0.05)
    finally:
        await link.close()
        await work
