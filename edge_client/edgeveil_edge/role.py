"""Assembly of a device: keys, files, ledger and machine.

The process, simulations and load tests all call `build`, each with its own link.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from edgeveil.config.edge import EdgeSite
from edgeveil.privacy.ledger import LEDGER_FILE, Ledger
from edgeveil.protocol import effects as fx
from edgeveil.protocol import sealed as real_sealing
from edgeveil.protocol.device import CloudEpoch, DeviceMachine
from edgeveil.protocol.device_round import DeviceSettings
from edgeveil.protocol.messages import Signer, data_set_tag
from edgeveil.protocol.sealed import Sealing
from edgeveil.transport.runtime import Runner
from edgeveil.trust.bundle import StoredTrust
from edgeveil.trust.trusted_keys import trusted_keys
from edgeveil_edge.compute import Compute
from edgeveil_edge.host import DeviceChance, DeviceHost
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_edge.store import STORE_FILE, DeviceStore


class DeviceRole:
    """A device that is ready to run, with its state in `site.state_dir`.

    random      noise and moments; default: the operating system's
    link        connects the role to a transport; returns the runner of its machine
    sealing     replaced in simulations only
    on_message  takes lines for the owner
    compute     default: computes in this process

    Raises UsageError, StorageError, PrivacyError or CryptoError.
    """

    def __init__(
        self,
        site: EdgeSite,
        *,
        random: DeviceChance | None = None,
        link: Callable[[DeviceRole], Runner],
        sealing: Sealing = real_sealing,
        on_message: Callable[[str], None] = lambda _line: None,
        compute: Callable[[EdgeSite, DeviceIdentity], Compute] | None = None,
    ) -> None:
        limits = site.limits
        identity = DeviceIdentity.load(site.state_dir)
        self.site, self.identity, self.id = site, identity, identity.device_id
        self.address = fx.DeviceAddress(self.id)
        self.store = DeviceStore(site.state_dir / STORE_FILE)
        self.ledger = Ledger(site.state_dir / LEDGER_FILE, site.data.name)
        self.signer = Signer(self.id, identity.signing)
        trust = StoredTrust(site.state_dir, site.trust_file) if site.trust_file else None
        files = {"cloud": site.cloud_key_file, "proxy": site.proxy_key_file}
        keys = trusted_keys(trust, cell=site.cell, **files)
        own = identity.opening.public().to_bytes()
        self.store.enter_cell(site.cell, self.id, own, time.time())
        memory = self.store.load()
        if keys.epoch > memory.epoch:  # the epoch came another way, as from the owner
            self.store.store(CloudEpoch(keys.epoch))
            memory = self.store.load()
        self.host = DeviceHost(
            site,
            identity,
            self.store,
            self.ledger,
            random,
            on_message=on_message,
            sealing=sealing,
            compute=compute(site, identity) if compute else None,
            trust=trust,
        )
        fetch_bytes = max(DeviceSettings.fetch_bytes, limits.blob_bytes)
        sizes = limits.packet_bytes, limits.blob_bytes, fetch_bytes, limits.jobs
        urls, covered = site.blobs.urls if site.blobs else (), site.policy.require_cover
        settings = DeviceSettings(*sizes, require_cover=covered, blob_urls=urls)
        tag, own_keys = data_set_tag(site.data.name), identity.sealing_keys
        self.machine = DeviceMachine(self.signer, keys, memory, settings, tag, own_keys)
        self.runner = link(self)

    def close(self) -> None:
        self.store.close()
        self.ledger.close()


build = DeviceRole
