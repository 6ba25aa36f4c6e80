"""The broadcast that the cloud offers until the proxy holds it."""

from __future__ import annotations

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_tasks import CloudSettings
from edgeveil.protocol.envelope import Signer
from edgeveil.protocol.messages import Manifest, Need
from edgeveil.protocol.transfer import answer_need, sends


class Outgoing:
    """At most one broadcast, and how it is sent again; one timer, `resend`."""

    def __init__(self, signer: Signer, settings: CloudSettings) -> None:
        self._signer, self._settings = signer, settings
        self._manifest: Manifest | None = None
        self._data = b""

    def offer(self, manifest: Manifest, data: bytes) -> list[fx.Effect]:
        """Begin with this one, in place of the one before."""
        self._manifest, self._data = manifest, data
        return self.send(push=manifest.blob.size_bytes <= self._settings.push_bytes)

    def drop(self) -> None:
        """The proxy holds it, or nobody needs it any more."""
        self._manifest, self._data = None, b""

    def send(self, *, push: bool = False) -> list[fx.Effect]:
        """Say it (again); the proxy asks for parts that did not come with the first offer."""
        if self._manifest is None:
            return []
        signed, packet_bytes = self._signer.header(self._manifest), self._settings.packet_bytes
        blob = self._manifest.blob
        packets = sends(fx.Proxy(), signed, blob, self._data, packet_bytes, push=push)
        return [*packets, fx.SetTimer("resend", self._settings.resend_s)]

    def is_blob(self, digest: bytes) -> bool:
        """Whether this is the digest of the broadcast under way."""
        return self._manifest is not None and self._manifest.blob.digest == digest

    def answer(self, need: Need) -> list[fx.Effect]:
        """The parts asked for. Raises ProtocolError `unknown_blob` or `bad_index`."""
        if self._manifest is None or not self.is_blob(need.blob):
            raise ProtocolError("unknown_blob")
        return list(answer_need(fx.Proxy(), need, self._manifest.blob, self._data))
