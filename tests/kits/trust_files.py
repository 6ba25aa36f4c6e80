"""`trust.json` of a root with one key, for any role keys."""

from datetime import datetime, timedelta

from edgeveil.crypto.keys import SigningKey
from edgeveil.trust.bundle import TrustBundle
from edgeveil.trust.metadata import (
    ROLES,
    Delegated,
    RoleKey,
    document_bytes,
    make_delegations,
    make_root,
    now_utc,
    sign_document,
)

ROOT = SigningKey(bytes([77]) * 32)
HOUR = timedelta(hours=1)  # so that "20 days left" is said for all of a test


def trust_file(path, keys=None, *, days=180, version=1, now=None, **more):
    """Return a root that delegates to `keys` for so many days; other roles get new keys.

    `more` are further fields of the delegations, such as `cells`."""
    now = now or now_utc()
    root = make_root(1, [ROOT.public()], 1, datetime(2100, 1, 1, tzinfo=now.tzinfo))
    nobody = SigningKey(bytes([78]) * 32).public()
    roles = {role: RoleKey((keys or {}).get(role, nobody), version - 1) for role in ROLES}
    said = make_delegations(Delegated(version, now + timedelta(days=days) + HOUR, roles, **more))
    for document in (root, said):
        sign_document(document, ROOT)
    path.write_text(TrustBundle((document_bytes(root),), document_bytes(said)).to_text())
    return path
