"""Construction of the proxy: its machine, host and files; all deployments call `build`."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from edgeveil.config.proxy import ProxySite
from edgeveil.crypto.keys import SealingKey
from edgeveil.errors import EdgeVeilError
from edgeveil.protocol import effects as fx
from edgeveil.protocol import proxy_rounds as rounds
from edgeveil.protocol.messages import PeerKeys, RoundId, Signer, TrustMetadata
from edgeveil.protocol.proxy import FindAnswered, ProxyMachine, SealingKeyChanged, SetAside
from edgeveil.protocol.proxy_broadcasts import KeepBroadcast
from edgeveil.protocol.proxy_uploads import TakePut
from edgeveil.protocol.sealed import RoundCheck
from edgeveil.protocol.transfer import LEAST_BYTES, GrantPut, ShowBlob
from edgeveil.transport.process import own_signing_key
from edgeveil.transport.runtime import Runner
from edgeveil.trust.trusted_keys import check_own_cell, delegated_key, take_trust, trusted_keys
from edgeveil_proxy.conduct import ConductLimits, DeviceConduct
from edgeveil_proxy.registry import REGISTRY_FILE, Registry
from edgeveil_proxy.shuffle import Shuffle
from edgeveil_proxy.spool import SPOOL_FILE, Spool

if TYPE_CHECKING:
    from edgeveil.transport.blob_store import OpenBlobStore
    from edgeveil.trust.bundle import StoredTrust
    from edgeveil.trust.metadata import RoleKey
    from edgeveil_proxy.devices_file import DevicesFile

LOG = logging.getLogger("edgeveil.proxy")
_OPENED_KEPT = 64
MAX_OFFLINE_SHARE = 0.5  # of the admitted devices, for a warning on page and `/healthz`


class ProxyRole:
    """A proxy ready to run; one process owns its folder `site.state_dir`."""

    runner: Runner

    def __init__(self, site: ProxySite, clock: Callable[[], float], random: Shuffle) -> None:
        limits = site.limits
        self.site, self.address = site, fx.ProxyAddress(site.cell)
        key = own_signing_key(site.state_dir, "proxy")  # before anything is written
        self.trust: StoredTrust | None = None
        if site.trust_file:
            from edgeveil.trust.bundle import StoredTrust  # loaded only with a root

            self.trust = StoredTrust(site.state_dir, site.trust_file)
        keys = trusted_keys(self.trust, cloud=site.cloud_key_file, cell=site.cell)
        if self.trust is not None and keys.proxy is not None:
            check_own_cell(self.trust, site.cell, key.public())
            key = delegated_key(site.state_dir, "proxy", keys.proxy)
        signer = Signer("proxy", key)
        self.registry = Registry(site.state_dir / REGISTRY_FILE, limit=limits.devices)
        self._planned: DevicesFile | None = None
        if site.devices_file is not None:
            from edgeveil_proxy.devices_file import DevicesFile  # loaded only if configured

            self._planned = DevicesFile(site.devices_file, self.registry, site.cell, self._site_key)
            self._planned.look()
        self.spool = Spool(site.state_dir / SPOOL_FILE)
        self.blobs: OpenBlobStore | None = None
        if site.blobs is not None:
            from edgeveil.transport.blob_store import open_store  # loaded only if configured

            self.blobs = open_store(site.blobs, site.state_dir)
        self.host = ProxyHost(self.spool, random, self._take, self.registry, self.blobs)
        self.machine = ProxyMachine(
            signer,
            keys,
            self.registry,
            self.spool.load(),
            machine_settings(site),
            trust=self.trust.metadata.after if self.trust else None,
        )
        self.plan_problem = ""  # why devices_file could not be applied
        self.not_delegated = ""  # why the key that the root names cannot be used
        self.conduct = DeviceConduct(
            ConductLimits(limits.device_messages_per_s),
            lambda device: self.registry.verify_key(device) is not None,
            self.machine.uploads.open_request,
            lambda device: self.runner.post(fx.Command(SetAside(device))),
            clock,
        )

    def look_at_registry(self) -> None:
        if self._planned is not None:
            self._follow(self._planned)
        if self.registry.changed():
            self.conduct.keep_enrolled()
            self.runner.post(fx.Command("roster_changed"))

    def _follow(self, planned: DevicesFile) -> None:
        try:
            planned.look()
            self.plan_problem = ""
        except EdgeVeilError as error:
            if str(error) != self.plan_problem:
                LOG.error("devices_file_refused", extra={"problem": str(error)})
            self.plan_problem = str(error)

    def _site_key(self) -> RoleKey | None:
        delegated = self.trust.delegated if self.trust else None
        return delegated.site if delegated else None

    def warnings(self) -> list[str]:
        """Return `fleet_offline` from `MAX_OFFLINE_SHARE` on, `rounds_declined` over one half."""
        offline, enrolled = len(self.machine.offline or ()), len(self.registry.devices())
        answers, most = self.host.round, MAX_OFFLINE_SHARE
        away = offline > 0 and offline >= most * enrolled
        declined = 2 * answers.get("declined", 0) > answers.get("selected", 0)
        return ["fleet_offline"] * away + ["rounds_declined"] * declined

    def refresh_trust(self) -> None:
        self.runner.post(fx.Command(self._believe()))

    def _take(self, metadata: TrustMetadata) -> object:
        taken = take_trust(self.trust, metadata, self.site.cell)
        return self._believe() if isinstance(taken, PeerKeys) else taken

    def _believe(self) -> PeerKeys:
        """Return the peer keys; sign with the delegated key from now on if it is here."""
        keys = trusted_keys(self.trust, cell=self.site.cell)
        if keys.proxy is not None:
            try:
                self.machine.signer.key = delegated_key(self.site.state_dir, "proxy", keys.proxy)
                self.not_delegated = ""
            except EdgeVeilError as error:
                self.not_delegated = str(error)
        return keys

    def close(self) -> None:
        self.spool.close()
        self.registry.close()


def build(
    site: ProxySite,
    *,
    clock: Callable[[], float] = time.monotonic,
    random: Shuffle | None = None,
    link: Callable[[ProxyRole], Runner],
) -> ProxyRole:
    """Build a proxy; `link` connects the role and returns the runner of its machine.

    `random` permutes batches (default: the system's randomness). Raises UsageError, RegistryError,
    StorageError or CryptoError."""
    role = ProxyRole(site, clock, random or secrets.SystemRandom().shuffle)
    role.runner = link(role)
    return role


def machine_settings(site: ProxySite) -> rounds.ProxySettings:
    own = {"devices", "device_messages_per_s"}  # limits of the role, not of the machine
    return rounds.ProxySettings(
        **site.limits.model_dump(exclude=own),
        cover_window_s=site.cover_window_s if site.cover_traffic else 0.0,
        min_batch_floor=site.min_batch_floor,
        out_of_band_bytes=LEAST_BYTES if site.blobs else 0,
        blob_urls=site.cloud_blobs.urls if site.cloud_blobs else (),
    )


class ProxyHost:
    """Stores the machine's items and collects its reports for the status page."""

    def __init__(
        self,
        spool: Spool,
        shuffle: Shuffle,
        take_trust: Callable[[TrustMetadata], object] = lambda _metadata: None,
        registry: Registry | None = None,
        blobs: OpenBlobStore | None = None,
    ) -> None:
        self._spool, self._shuffle, self._take_trust = spool, shuffle, take_trust
        self._registry, self._blobs = registry, blobs
        self.online = 0
        self.round: dict[str, Any] = {}
        self.opened_s: dict[RoundId, float] = {}  # when the newest rounds opened, since 1970

    def store(self, item: object) -> None:
        if isinstance(item, SealingKeyChanged):
            if self._registry is not None:
                self._registry.renew_sealing(item.device, SealingKey(item.sealing), item.number)
            return
        self._spool.store(item)

    def together(self) -> AbstractContextManager[None]:
        return self._spool.together()

    def perform(self, task: object) -> object:
        match task:
            case KeepBroadcast():
                return self._spool.keep(task)
            case rounds.ShuffleRound():
                return self._spool.shuffled(task, self._shuffle)
            case rounds.StreamUploads():
                return self._spool.streamed(task, self._shuffle)
            case rounds.SumMasks(vectors=vectors, sets=sets, key=key):
                # Imported here, since proxies without masked rounds need no numpy.
                from edgeveil.protocol.tensors import correlated_mask_sums, mask_checks, mask_sums

                if key is not None:
                    checks = mask_checks(vectors, sets[0], RoundCheck(key, disclosed=True))
                    return rounds.SummedMasks(checks)
                if task.correlated is not None and task.factors is not None:
                    check = RoundCheck(task.factors, disclosed=True)
                    of = task.correlated.coefficient
                    found = correlated_mask_sums(vectors, sets[0], of, task.before, check)
                    return rounds.SummedMasks(*found)
                return rounds.SummedMasks(b"".join(mask_sums(vectors, seeds) for seeds in sets))
            case FindAnswered():
                return self._spool.answered(task)
            case ShowBlob() if self._blobs:
                return self._blobs.show(task)
            case GrantPut() if self._blobs:
                return self._blobs.grant(task)
            case TakePut() if self._blobs:
                from edgeveil.transport.blob_store import taken

                return self._spool.take(task, taken(self._blobs, task.name, task.blob))
            case fx.TakeTrust(metadata=metadata):
                return self._take_trust(metadata)
        return fx.WorkFailed("no_such_work")

    def report(self, report: fx.Report) -> None:
        """Log a report and update counts; device ids are never logged."""
        data: Mapping[str, Any] = report.data
        if report.kind == "devices_online":
            self.online = int(data["count"])
        elif report.kind == "round_open":
            self.round = {"index": data["round"], "phase": data["phase"], "uploads": 0}
            if report.at is not None:
                self.opened_s[report.at] = time.time()
                while len(self.opened_s) > _OPENED_KEPT:
                    del self.opened_s[next(iter(self.opened_s))]
        elif report.kind == "answered":
            self.round = {**self.round, **data, "index": data["round"]}
        level = logging.WARNING if report.kind == "over_the_broker" else logging.DEBUG
        LOG.log(level, report.kind, extra=dict(data))
