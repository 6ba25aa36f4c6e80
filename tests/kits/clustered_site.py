"""A live site whose two broker addresses are the nodes of one NATS cluster."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.kits.live_site import LiveSite
from tests.kits.nats_cluster import NatsCluster, user_name


class ClusteredSite(LiveSite):
    """Cloud, proxy and devices; each link has the addresses of all nodes, its own first."""

    def __init__(self, folder: Path, devices: int = 4) -> None:
        super().__init__(folder, devices=devices)
        self.cluster = NatsCluster(folder / "nats", self.site.passwords)
        self.brokers = {}
        for number, path in enumerate((self.site.cloud, self.site.proxy, *self.site.edges)):
            self._address_cluster(path, number)

    def __enter__(self) -> ClusteredSite:
        self.cluster.start()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.cluster.stop()

    def _address_cluster(self, path: Path, number: int) -> None:
        """So that the links of different processes begin at different nodes."""
        settings = yaml.safe_load(path.read_text())
        ((role, block),) = settings.items()
        sides = {"cloud": {"broker": "cloud"}, "edge": {"broker": "edge"}}
        both = {"edge_broker": "edge", "cloud_broker": "cloud"}
        urls, first = self.cluster.urls, number % len(self.cluster.urls)
        for key, side in sides.get(role, both).items():
            link = block[key]
            link["url"] = urls[first:] + urls[:first]
            link["username"] = user_name(side, link["username"])
        path.write_text(yaml.safe_dump(settings))
