"""Blob stores for large messages, out of band of the brokers: served here, or used as a client."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from edgeveil.config.base import Block, Mix, PortNumber, SitePath
from edgeveil.config.links import HttpTls


def _prefix(url: str) -> str:
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        parts, fine = urlsplit(""), False
    plain = not (parts.query or parts.fragment or parts.username or parts.password)
    if not fine or not plain or not parts.path.endswith("/") or not url.isprintable():
        raise ValueError(f"must be like https://blobs.example.org/, got '{url[:64]}'")
    if parts.scheme == "http" and not is_near(parts.hostname or ""):
        what = "must be https: over http others on the network learn which device downloads what"
        raise ValueError(what)
    return url


def is_near(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


UrlPrefix = Annotated[str, Field(min_length=8, max_length=300), AfterValidator(_prefix)]


class BlobAccess(Block):
    """A store of another party, for large blobs."""

    urls: tuple[UrlPrefix, ...] = Field(
        min_length=1, max_length=16, examples=[["https://blobs.example.org/"]]
    )
    """Prefixes of its URLs, up to a slash; no other URL is ever requested."""
    ca_file: SitePath | None = None
    """PEM file of the authorities accepted for it; none: the system's."""


class BlobServe(Block):
    """A store that this process serves itself."""

    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    """Address to listen on; the default is reachable only from this machine."""
    port: PortNumber = 8703
    """TCP port."""
    tls: HttpTls | None = None
    """Speak HTTPS; none: plain HTTP, as behind a server that ends TLS."""


class BlobBucket(Block):
    """A bucket at S3 or a compatible service, at Google's or at Azure's."""

    url: str = Field(pattern=r"^(s3|gs|az)://\S+$", max_length=300, examples=["s3://fleet/blobs"])
    """`s3://bucket/folder`, `gs://…` or `az://…`."""
    options_file: SitePath | None = None
    """YAML file of region, endpoint, access_key_id, …, mode 0600; null: the environment."""


class BlobStore(Block):
    """A store of this side's own: large blobs go through it in place of the broker."""

    url: UrlPrefix | None = Field(default=None, examples=["https://blobs.example.org/"])
    """URL prefix by which others reach `serve`."""
    serve: BlobServe | None = None
    """Serve blobs from this process, out of its state folder."""
    bucket: BlobBucket | None = None
    """Store blobs in a bucket, accessed by signed URLs."""


def blob_mixes(store: BlobStore | None, at: str) -> Iterator[Mix]:
    if store is None:
        return
    if (store.serve is None) == (store.bucket is None):
        yield Mix((f"{at}.serve", f"{at}.bucket"), "blobs are served, or lie in a bucket; name one")
    if (store.serve is None) != (store.url is None):
        what = "url is the address under which others reach serve; set both"
        yield Mix((f"{at}.url", f"{at}.serve"), what)


def bucket_options(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    import yaml

    from edgeveil.errors import UsageError

    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError):
        found = None
    if not isinstance(found, dict):
        raise UsageError("no options can be read", where=str(path), fix="write key: value lines")
    return {str(key): str(value) for key, value in found.items()}
