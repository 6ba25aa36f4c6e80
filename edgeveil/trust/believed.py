"""Keys that a process believes and speaks with, from the root's metadata that it holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgeveil.crypto.keys import SigningKey, VerifyKey
from edgeveil.errors import UsageError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import PeerKeys, TrustMetadata
from edgeveil.transport.process import own_signing_key, peer_key

if TYPE_CHECKING:  # without a root none of it is loaded
    from edgeveil.trust.bundle import HeldTrust


def believed_keys(
    trust: HeldTrust | None,
    *,
    cloud: Path | None = None,
    proxy: Path | None = None,
    cell: str = "",
) -> PeerKeys:
    """Keys that the root delegates, the proxy's of `cell`; without a root the pinned ones. Raises
    TrustError `unknown_cell`."""
    if trust is None:
        return PeerKeys.pinned(
            cloud=peer_key(cloud, "the cloud") if cloud else None,
            proxy=peer_key(proxy, "the proxy") if proxy else None,
        )
    said = trust.delegated
    versions = trust.metadata.root_version, trust.metadata.version
    if said is None:
        return PeerKeys(versions=versions)
    jobs, releases = said.roles["cloud-jobs"], said.roles["cloud-releases"]
    held = said.proxy_of(cell)
    epoch = jobs.epoch + releases.epoch
    return PeerKeys(jobs.key, held.rosters.key, releases.key, epoch, held.lineage, versions)


def take_trust(
    trust: HeldTrust | None, metadata: TrustMetadata, cell: str = ""
) -> PeerKeys | fx.WorkFailed | None:
    """Go forward to what came over the wire; None where it is known."""
    if trust is None:
        return fx.WorkFailed("unexpected_metadata")
    from edgeveil.trust.metadata import TrustError

    try:
        changed = trust.take(metadata.roots, metadata.delegations)
        return believed_keys(trust, cell=cell) if changed else None
    except TrustError as error:
        return fx.WorkFailed(error.reason)


def check_own_cell(trust: HeldTrust, cell: str, key: VerifyKey) -> None:
    """Raise TrustError `another_cell` where the root says that a proxy's key is another cell's."""
    theirs = trust.delegated.cell_of(key) if trust.delegated else None
    if theirs not in (None, cell):
        from edgeveil.trust.metadata import TrustError

        what = f"this proxy's key is of cell '{theirs}', and its site file says '{cell}'"
        fix = "correct cell, or install the bundle of this cell's proxy"
        raise TrustError("another_cell", what, fix=fix)


def delegated_key(state_dir: Path, name: str, wanted: VerifyKey) -> SigningKey:
    """The secret half of `wanted`: `<name>.key`, or `<name>-next.key`, which then takes its place.
    Raises UsageError, or SystemFault where there is none."""
    key, later = own_signing_key(state_dir, name), state_dir / f"{name}-next.key"
    if key.public() == wanted:
        return key
    if later.exists() and (key := SigningKey.load(later)).public() == wanted:
        key.save(state_dir / f"{name}.key", overwrite=True)
        key.public().save(state_dir / f"{name}.pub", overwrite=True)
        later.unlink()
        later.with_suffix(".pub").unlink(missing_ok=True)
        return key
    what, where = f"the root vouches for another key, {wanted.fingerprint()}", f"{name}.key"
    fix = "put back the key that it names, or have the root name this one: edgeveil trust rotate"
    raise UsageError(what, where=str(state_dir / where), fix=fix)


def next_key(state_dir: Path, name: str) -> Path:
    """Make `<name>-next.key` where there is none; its public file, for the root to name."""
    own_signing_key(state_dir, name)
    public = state_dir / f"{name}-next.pub"
    path = public.with_suffix(".key")
    if not path.exists():
        SigningKey.generate().save(path)
    SigningKey.load(path).public().save(public, overwrite=True)
    return public
