"""What is to be deployed: the parties of bundles, or of a folder that `provision` made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from edgeveil.errors import UsageError
from edgeveil.parts.methods import trains_model
from edgeveil.settings.file import parsed, read
from edgeveil.sites.edge import EdgeSite
from edgeveil.sites.files import SITES, kind_of, load_site
from edgeveil_tools.site.bundles import INVENTORY, inventory_of
from edgeveil_tools.site.fleet_files import POLICY_FILE
from edgeveil_tools.site.owners_word import SITE_FILE

ROOT = Path("/var/lib/edgeveil")
DEVICE_IMAGES = ("edge-infer", "edge-train-fm", "edge-train")  # each does what those before do


@dataclass(frozen=True)
class DeployedParty:
    """One party. `config` counts from its folder `place` on the host, whose `state` it writes.

    `image` is the container file that holds what it needs, `http_port` of its status pages, `ports`
    that others connect to.
    """

    name: str
    kind: str  # cloud, proxy, broker, edge
    image: str
    config: str
    http_port: int | None = None
    ports: tuple[int, ...] = ()

    @property
    def place(self) -> Path:
        """Its folder on the host."""
        return ROOT / self.name

    @property
    def file(self) -> Path:
        """Its site file on the host."""
        return self.place / self.config


def parties_of(folders: Iterable[Path]) -> list[DeployedParty]:
    """Raises UsageError for what is no bundle, BundleError for a damaged one."""
    found = [_party(folder) for folder in folders]
    names = [party.name for party in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two bundles are {twice}'s", fix="name each party once")
    return found


def _party(folder: Path) -> DeployedParty:
    if not (folder / INVENTORY).exists():
        fix = "name bundles: edgeveil site apply makes them, edgeveil site install puts them"
        raise UsageError("is no bundle", where=str(folder), fix=fix)
    inventory, path = inventory_of(folder), folder / SITE_FILE
    if inventory.party == "edge" and not (folder / POLICY_FILE).exists():
        fix = "name the folder where the device is installed"
        raise UsageError("is an update, which holds no keys", where=str(folder), fix=fix)
    kind = kind_of(parsed(read(path), str(path)).value)
    if kind not in SITES or kind != inventory.party:
        raise UsageError("holds another party's site file", where=str(path), fix="take it anew")
    site = load_site(path)
    http = getattr(site, "http", None)
    ports = [port for port in (getattr(site, "port", None),) if port is not None]
    ports += [port for port in (getattr(site, "websockets_port", None),) if port is not None]
    image = _device_image(site) if isinstance(site, EdgeSite) else kind
    page = http.port if http is not None else None
    return DeployedParty(inventory.name, kind, image, SITE_FILE, page, tuple(ports))


def _device_image(site: EdgeSite) -> str:
    """The smallest that serves the role and every method that the owner allows."""
    infers, trains_fm, trains = DEVICE_IMAGES
    if site.role == "infer":
        return infers
    needs_torch = any(map(trains_model, site.policy.allowed_methods))
    return trains if needs_torch else trains_fm
