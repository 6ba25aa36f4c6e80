"""The cloud put together: its store, its machine, what the machine's effects do, its job queue.

`build` is the one wiring: the process, simulations, load tests and benches all call it, each with
a link of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from edgeveil.parts.own_records import held_records
from edgeveil.privacy.sampler import RandomBytes, os_random
from edgeveil.protocol import effects as fx
from edgeveil.protocol import sealed as real_sealing
from edgeveil.protocol.cloud import CloudMachine
from edgeveil.protocol.cloud_tasks import CloudSettings
from edgeveil.protocol.messages import Signer
from edgeveil.protocol.sealed import Sealing
from edgeveil.protocol.transfer import part_bytes
from edgeveil.sites.cloud import CloudSite
from edgeveil.transport.process import own_signing_key, peer_key
from edgeveil.transport.runtime import Runner
from edgeveil_cloud.broadcasts import BroadcastLimits, Choose, draw
from edgeveil_cloud.control import Control
from edgeveil_cloud.host import CloudHost
from edgeveil_cloud.round_report import Recorder
from edgeveil_cloud.store import Store

STORE_FILE = "cloud.sqlite"


@dataclass(frozen=True)
class CloudChance:
    """What chance decides in the cloud: whom a round asks, and what aggregation rules draw from."""

    choose: Choose = draw
    random_bytes: RandomBytes = os_random


class CloudRole:
    """A cloud that is ready to run. Its folder is `site.state_dir`; one process owns it."""

    address = fx.CloudAddress()
    runner: Runner
    control: Control

    def __init__(
        self, site: CloudSite, clock: Callable[[], float], random: CloudChance, sealing: Sealing
    ) -> None:
        limits = site.limits
        self.site = site
        signer = Signer("cloud", own_signing_key(site.state_dir, "cloud"))  # makes the folder
        self.machine = CloudMachine(
            signer,
            peer_key(site.proxy_key_file, "the proxy"),
            CloudSettings(
                packet_bytes=limits.packet_bytes,
                blob_bytes=limits.blob_bytes,
                spool_bytes=limits.spool_bytes,
            ),
        )
        self.store = Store(site.store_url or f"sqlite:///{site.state_dir / STORE_FILE}")
        self.host = CloudHost(
            self.store,
            held_records(site.test_data) if site.test_data else None,
            BroadcastLimits(part_bytes(limits.packet_bytes), limits.blob_bytes, limits.spool_bytes),
            spool_dir=site.state_dir,
            clock=clock,
            sealing=sealing,
            choose=random.choose,
            recorder=Recorder(site.record_dir) if site.record_dir else None,
            random_bytes=random.random_bytes,
        )

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def build(
    site: CloudSite,
    *,
    clock: Callable[[], float] = time.monotonic,
    random: CloudChance | None = None,
    link: Callable[[CloudRole], Runner],
    sealing: Sealing = real_sealing,
) -> CloudRole:
    """A cloud as its site file says, with what its store holds.

    `clock` gives seconds, from any zero; `random` is the operating system's without another;
    `link` puts the role where frames reach it, and tells what runs its machine. Only a simulation
    has another `sealing`. Raises UsageError, StoreError, DataError or CryptoError.
    """
    role = CloudRole(site, clock, random or CloudChance(), sealing)
    role.runner = link(role)
    role.control = Control(
        role.store,
        role.host,
        role.machine,
        role.runner,
        site.limits.jobs_queued,
        python_models=site.allow_python_models,
    )
    return role
