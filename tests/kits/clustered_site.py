"""A live site whose two broker addresses are the nodes of one cluster."""

from tests.kits.commands import changed
from tests.kits.live_site import LiveSite
from tests.kits.nats_cluster import NatsCluster


class ClusteredSite(LiveSite):
    """Cloud, proxy and devices; each link has all nodes' addresses, its own node first."""

    def __init__(self, folder, devices=5, cluster=NatsCluster, silence_s=600):
        super().__init__(folder, devices=devices)
        self._silence_s = silence_s
        self.cluster = cluster(folder / "cluster", self.site.passwords)
        self.brokers = {}
        for number, path in enumerate((self.site.cloud, self.site.proxy, *self.site.edges)):
            self._address_cluster(path, number)

    def __enter__(self):
        self.cluster.start()
        return self

    def __exit__(self, *error):
        super().__exit__(*error)
        self.cluster.stop()

    def clients(self):
        """Return one client name per link, as `node_of` takes them."""
        edges = [name for name in self.processes if name.startswith("edge")]
        return ["cloud", "proxy edge", "proxy cloud", *edges]

    def node_of(self, client):
        """Return a client's last node; clients are `cloud`, `edge-1`, `proxy edge` and so on."""
        name, _, hop = client.partition(" ")
        lines = [line for line in self.log(name).splitlines() if "broker_connected" in line]
        at = [line for line in lines if not hop or f"hop={hop}" in line][-1]
        (node,) = [n for n, url in enumerate(self.cluster.urls) if url.split("//")[1] in at]
        return node

    def _address_cluster(self, path, number):
        """Make the links of different processes begin at different nodes."""
        sides = {"cloud": {"broker": "cloud"}, "edge": {"broker": "edge"}}
        both = {"edge_broker": "edge", "cloud_broker": "cloud"}
        urls, first = self.cluster.urls, number % len(self.cluster.urls)
        with changed(path) as settings:
            ((role, block),) = settings.items()
            for key, side in sides.get(role, both).items():
                link = block[key]
                link["url"] = urls[first:] + urls[:first]
                link["username"] = self.cluster.user_name(side, link["username"])
                link["silence_s"] = self._silence_s
