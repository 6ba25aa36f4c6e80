"""Construction of the cloud; processes, simulations and load tests call `build`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from edgeveil.config.cloud import CloudSite
from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import EdgeVeilError
from edgeveil.privacy.sampler import RandomBytes, os_random
from edgeveil.protocol import effects as fx
from edgeveil.protocol import sealed as real_sealing
from edgeveil.protocol.cloud import CloudMachine, OwnKeys
from edgeveil.protocol.cloud_job import CloudSettings
from edgeveil.protocol.messages import PeerKeys, Signer, TrustMetadata
from edgeveil.protocol.sealed import Sealing
from edgeveil.protocol.transfer import LEAST_BYTES, part_bytes
from edgeveil.transport.blob_store import open_store
from edgeveil.transport.health import writable
from edgeveil.transport.process import own_signing_key
from edgeveil.transport.runtime import Runner
from edgeveil.trust.bundle import StoredTrust
from edgeveil.trust.moves import moved_cells, read_moves
from edgeveil.trust.trusted_keys import delegated_key, trusted_keys
from edgeveil_cloud.broadcasts import BroadcastLimits, Choose, draw
from edgeveil_cloud.compute.processes import workers_of
from edgeveil_cloud.control import Control
from edgeveil_cloud.evaluation import HeldTests
from edgeveil_cloud.host import CloudHost
from edgeveil_cloud.round_report import Recorder
from edgeveil_cloud.store import Store

LOG = logging.getLogger("edgeveil.cloud")
STORE_FILE = "cloud.sqlite"
_ROOTS_SENT = 8  # a proxy further behind needs trust.json from its operator


def store_of(site: CloudSite) -> Store:
    return Store(site.store_url or f"sqlite:///{site.state_dir / STORE_FILE}")


@dataclass(frozen=True)
class CloudChance:
    """Random sources of selection and of aggregation rules."""

    choose: Choose = draw
    random_bytes: RandomBytes = os_random


class CloudRole:
    """A cloud ready to run; one process owns its folder `site.state_dir`."""

    address = fx.CloudAddress()
    runner: Runner
    control: Control

    def __init__(
        self, site: CloudSite, clock: Callable[[], float], random: CloudChance, sealing: Sealing
    ) -> None:
        limits = site.limits
        self.site = site
        self.not_delegated = ""  # why the keys that the root names cannot be used
        own_signing_key(site.state_dir, "cloud")  # before anything is written
        self.store = store_of(site)
        self.trust = StoredTrust(site.state_dir, site.trust_file) if site.trust_file else None
        jobs, releases, keys, metadata = self._own_keys()
        self.machine = CloudMachine(
            Signer("cloud", jobs),
            keys,
            CloudSettings(
                packet_bytes=limits.packet_bytes,
                blob_bytes=limits.blob_bytes,
                spool_bytes=limits.spool_bytes,
                out_of_band_bytes=LEAST_BYTES if site.blobs else 0,
            ),
            releases=Signer("cloud", releases) if self.trust else None,
            rosters=self.store.roster_marks(),
            metadata=metadata,
        )
        self.blobs = open_store(site.blobs, site.state_dir)
        self.workers = workers_of(site.compute)
        self.host = CloudHost(
            self.store,
            HeldTests(site.test_sets) if site.test_sets else None,
            limits_of(site),
            spool_dir=site.state_dir,
            clock=clock,
            sealing=sealing,
            choose=random.choose,
            recorder=Recorder(site.record_dir) if site.record_dir else None,
            random_bytes=random.random_bytes,
            valid_s=site.releases.valid_s,
            moved=self._moved,
            blobs=self.blobs,
            workers=self.workers,
            not_trusted=self._not_trusted,
        )

    def _not_trusted(self) -> str:
        """Return why devices would refuse this cloud's signatures, or ""."""
        return self.not_delegated or (self.trust.problem if self.trust else "")

    def _moved(self) -> dict[bytes, str]:
        """Return the cell each device was moved to; none unless the root delegates moves."""
        delegated = self.trust.delegated if self.trust else None
        if self.site.moves_file is None or delegated is None:
            return {}
        return moved_cells(read_moves(self.site.moves_file), delegated)

    def _own_keys(self) -> tuple[SigningKey, SigningKey, dict[str, PeerKeys], TrustMetadata | None]:
        """Return own and peer keys and metadata; raises UsageError for a missing delegated key."""
        folder = self.site.state_dir
        by_cell = {
            cell.name: trusted_keys(self.trust, proxy=cell.proxy_key_file, cell=cell.name)
            for cell in self.site.all_cells
        }
        own, keys = own_signing_key(folder, "cloud"), next(iter(by_cell.values()))
        if self.trust is None or keys.cloud is None or keys.releases is None:
            return own, own, by_cell, None
        metadata = self.trust.metadata
        sent = TrustMetadata(metadata.roots[1:][-_ROOTS_SENT:], metadata.document)
        jobs = delegated_key(folder, "cloud", keys.cloud)
        return jobs, delegated_key(folder, "releases", keys.releases), by_cell, sent

    def refresh_trust(self) -> None:
        try:
            jobs, releases, keys, metadata = self._own_keys()
        except EdgeVeilError as error:
            self.not_delegated = str(error)
            return
        self.not_delegated = ""
        if metadata is not None:
            self.runner.post(fx.Command(OwnKeys(jobs, releases, keys, metadata)))

    def close(self) -> None:
        if self.workers is not None:
            self.workers.close()
        self.store.close()


def limits_of(site: CloudSite) -> BroadcastLimits:
    limits = site.limits
    part = part_bytes(limits.packet_bytes)
    return BroadcastLimits(part, limits.blob_bytes, limits.spool_bytes)


def build(
    site: CloudSite,
    *,
    clock: Callable[[], float] = time.monotonic,
    random: CloudChance | None = None,
    link: Callable[[CloudRole], Runner],
    sealing: Sealing = real_sealing,
) -> CloudRole:
    """Build a cloud; `link` connects the role and returns the runner of its machine.

    `clock` returns seconds. Raises UsageError, StoreError, DataError or CryptoError."""
    role = CloudRole(site, clock, random or CloudChance(), sealing)
    role.runner = link(role)
    role.control = Control(
        role.store,
        role.host,
        role.machine,
        role.runner,
        running=site.limits.jobs_running,
        python_models=site.allow_python_models,
        validity=site.releases,
        able=lambda room_bytes: writable(site.state_dir, room_bytes) is True,
    )
    return role
