"""What the devices of one generator process have in common: frames, jobs, noise, counts, chance.

A broadcast reaches every device as the same bytes. They are decoded once, and a signature of the
cloud or the proxy on the same bytes is checked once; everything that is a device's own (opening,
sealing, signing) is done for each.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections import OrderedDict

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from edgeveil.crypto.keys import VerifyKey
from edgeveil.errors import ProtocolError
from edgeveil.jobs import compile_canonical
from edgeveil.jobs.plan import Plan
from edgeveil.protocol.messages import Commit, Manifest, Message, Offer, Part, decode, decode_header
from edgeveil.protocol.transfer import Assembly
from edgeveil_lab.load.tally import Tally

_FRAMES = 4096
_FRAMES_BYTES = 128 << 20
_KEY_BYTES = 96  # of a frame: tag, blob digest and index of a part, signer and more of an offer
_POOL_BYTES = 4 << 20
_SIGNATURES = 64


class Shared:
    """One per generator process. `now_s` is the leader's clock, seconds since 1970."""

    def __init__(self, packet_bytes: int, payload_bytes: int, offset_s: float = 0.0) -> None:
        self.tally = Tally()
        self.chance = random.Random(os.urandom(16))  # noqa: S311 - who goes away, and when
        self._packet_bytes, self._offset_s = packet_bytes, offset_s
        self._frames: OrderedDict[bytes, tuple[bytes, Message]] = OrderedDict()
        self._frames_bytes = 0
        self._blobs: dict[bytes, bytes] = {}
        self._plans: dict[bytes, Plan] = {}
        self._commits: dict[bytes, tuple[Commit, Assembly]] = {}
        pool = np.random.default_rng().standard_normal(
            max(_POOL_BYTES, 2 * payload_bytes) // 4, np.float32
        )
        self._noise = pool.astype("<f4").tobytes()

    def now_s(self) -> float:
        """The leader's time."""
        return time.time() + self._offset_s

    # --- frames ---

    def message(self, frame: bytes) -> Message:
        """The frame's message, and a note of what commit records say. Raises ProtocolError."""
        key = frame[:_KEY_BYTES]
        known = self._frames.get(key)
        if known is not None and known[0] == frame:
            return known[1]
        message = decode(frame, self._packet_bytes)
        if isinstance(message, Offer | Part):
            self._follow(message)
            self._frames[key] = (frame, message)
            self._frames_bytes += len(frame)
            while len(self._frames) > _FRAMES or self._frames_bytes > _FRAMES_BYTES:
                _, (old, _message) = self._frames.popitem(last=False)
                self._frames_bytes -= len(old)
        return message

    def blob(self, digest: bytes, data: bytes) -> bytes:
        """One copy of a broadcast for all devices that wait for their turn to open it."""
        if digest not in self._blobs:
            while len(self._blobs) >= 4:
                del self._blobs[next(iter(self._blobs))]
            self._blobs[digest] = data
        return self._blobs[digest]

    def _follow(self, message: Message) -> None:
        """Read each commit record once, whichever device it came to first; forget old rounds."""
        if isinstance(message, Offer):
            header = decode_header(message.header)
            if isinstance(header, Manifest) and header.kind == "round":
                self._forget()
            if not isinstance(header, Commit) or self.tally.committed(header.at):
                return
            if message.data or not header.blob.size_bytes:
                self.tally.commit(header.at, message.data)
            else:
                assembly = Assembly(header.blob, header.blob.size_bytes)
                self._commits.setdefault(header.blob.digest, (header, assembly))
        elif isinstance(message, Part) and message.blob in self._commits:
            header, assembly = self._commits[message.blob]
            if assembly.add(message):
                del self._commits[message.blob]
                self.tally.commit(header.at, assembly.finish())

    def _forget(self) -> None:
        """A new round: what was for the one before hardly comes again."""
        self._frames.clear()
        self._blobs.clear()
        self._frames_bytes = 0

    # --- work ---

    def learn(self, job_id: bytes, canonical: bytes, digest: bytes) -> None:
        """Keep a job's plan. Raises ProtocolError `wrong_job`."""
        if hashlib.sha256(canonical).digest() != digest:
            raise ProtocolError("wrong_job")
        if job_id not in self._plans:
            self._plans[job_id] = compile_canonical(canonical)

    def plan(self, manifest: Manifest) -> Plan:
        """The plan of a round's job. Raises ProtocolError `unknown_job`."""
        plan = self._plans.get(manifest.at.job_id)
        if plan is None:
            raise ProtocolError("unknown_job")
        return plan

    def noise(self, byte_count: int) -> bytes:
        """Finite float32 noise, from a random place of a pool that was drawn beforehand."""
        start = 4 * self.chance.randrange((len(self._noise) - byte_count) // 4)
        return self._noise[start : start + byte_count]


class SharedVerifyKey(VerifyKey):
    """The cloud's key: the same signature on the same bytes is checked once for all devices."""

    __slots__ = ("_checks",)
    _checks: Checks

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw)
        object.__setattr__(self, "_checks", Checks(super().library_key()))

    def library_key(self) -> Checks:  # type: ignore[override]
        """The library's key, with a memory."""
        return self._checks


class Checks:
    """The last signatures that were found good."""

    def __init__(self, key: Ed25519PublicKey) -> None:
        self._key = key
        self._good: OrderedDict[tuple[bytes, bytes], None] = OrderedDict()

    def verify(self, signature: bytes, data: bytes) -> None:
        """Raises InvalidSignature."""
        if (signature, data) in self._good:
            return
        self._key.verify(signature, data)
        self._good[signature, data] = None
        if len(self._good) > _SIGNATURES:
            self._good.popitem(last=False)
