"""Keys that a process trusts or signs with, from the root's metadata or pinned files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgeveil.crypto.keys import SigningKey, VerifyKey
from edgeveil.errors import UsageError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import PeerKeys, TrustMetadata
from edgeveil.transport.process import own_signing_key, peer_key

if TYPE_CHECKING:  # loaded only with a root
    from edgeveil.trust.bundle import StoredTrust


def trusted_keys(
    trust: StoredTrust | None,
    *,
    cloud: Path | None = None,
    proxy: Path | None = None,
    cell: str = "",
) -> PeerKeys:
    """Return delegated or, without a root, pinned keys. Raises TrustError `unknown_cell`."""
    if trust is None:
        return PeerKeys.pinned(
            cloud=peer_key(cloud, "the cloud") if cloud else None,
            proxy=peer_key(proxy, "the proxy") if proxy else None,
        )
    delegated = trust.delegated
    versions = trust.metadata.root_version, trust.metadata.version
    if delegated is None:
        return PeerKeys(versions=versions)
    jobs, releases = delegated.roles["cloud-jobs"], delegated.roles["cloud-releases"]
    theirs = delegated.proxy_of(cell)
    epoch = jobs.epoch + releases.epoch
    return PeerKeys(jobs.key, theirs.rosters.key, releases.key, epoch, theirs.lineage, versions)


def take_trust(
    trust: StoredTrust | None, metadata: TrustMetadata, cell: str = ""
) -> PeerKeys | fx.WorkFailed | None:
    """Advance to received metadata; return None if it is known."""
    if trust is None:
        return fx.WorkFailed("unexpected_metadata")
    from edgeveil.trust.metadata import TrustError

    try:
        changed = trust.take(metadata.roots, metadata.delegations)
        return trusted_keys(trust, cell=cell) if changed else None
    except TrustError as error:
        return fx.WorkFailed(error.reason)


def check_own_cell(trust: StoredTrust, cell: str, key: VerifyKey) -> None:
    """Raise TrustError `another_cell` if the root assigns a proxy's key to another cell."""
    theirs = trust.delegated.cell_of(key) if trust.delegated else None
    if theirs not in (None, cell):
        from edgeveil.trust.metadata import TrustError

        what = f"this proxy's key is of cell '{theirs}', its site file has '{cell}'"
        fix = "correct cell, or install the bundle of this cell's proxy"
        raise TrustError("another_cell", what, fix=fix)


def delegated_key(state_dir: Path, name: str, wanted: VerifyKey) -> SigningKey:
    """Return the secret of `wanted`, adopting `<name>-next.key`. Raises UsageError, SystemFault."""
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
    """Generate `<name>-next.key` if missing; return its public file, for the root to sign."""
    own_signing_key(state_dir, name)
    public = state_dir / f"{name}-next.pub"
    path = public.with_suffix(".key")
    if not path.exists():
        SigningKey.generate().save(path)
    SigningKey.load(path).public().save(public, overwrite=True)
    return public
