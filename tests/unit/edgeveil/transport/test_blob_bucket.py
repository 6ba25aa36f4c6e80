"""A bucket as the store, at a server that speaks S3: signed URLs, their end, and what is swept."""

import os
import time

import pytest
from test_blob_transfers import TO, fetch, put

from edgeveil.config.blobs import BlobBucket
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.transfer import (
    BlobStored,
    FetchedOutOfBand,
    GrantPut,
    ShowBlob,
    describe,
    is_allowed,
)
from edgeveil.transport.blob_store import BucketStore, taken

DATA = os.urandom((6 << 20) + 7)  # more than one part of an S3 upload
BLOB = describe(DATA, 65024)


@pytest.fixture(scope="module")
def endpoint():
    pytest.importorskip("moto", reason="no server speaks S3: pip install '.[s3-tests]'")
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    names = {"aws_access_key_id": "them", "aws_secret_access_key": "secret"}
    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **names)
    client.create_bucket(Bucket="fleet")
    yield url
    server.stop()


def bucket(folder, endpoint, expires_s=600.0):
    options = folder / "s3.yaml"
    options.write_text(
        f"endpoint: {endpoint}\nregion: us-east-1\naccess_key_id: them\nsecret_access_key: secret\n"
    )
    return BucketStore(BlobBucket(url="s3://fleet/blobs", options_file=options), expires_s)


def test_signed_urls_let_a_blob_in_and_out_without_the_credentials(tmp_path, endpoint, client):
    store = bucket(tmp_path, endpoint)
    shown, grant = store.show(ShowBlob(BLOB, DATA)), store.grant(GrantPut(BLOB, TO, b"J" * 16))
    for url in (shown.url, grant.url):
        assert is_allowed(url, [f"{endpoint}/fleet/blobs/"]) and "secret" not in url
    assert fetch(client, shown.url, BLOB) == FetchedOutOfBand(DATA)
    assert put(client, grant.url, DATA) == BlobStored()
    assert b"".join(taken(store, grant.name, BLOB)) == DATA
    with pytest.raises(ProtocolError, match="not_there"):
        list(taken(store, grant.name, BLOB))
    for data, reason in ((DATA + b"x", "wrong_size"), (DATA[:-1] + b"x", "wrong_bytes")):
        grant = store.grant(GrantPut(BLOB, TO, b"J" * 16))
        assert put(client, grant.url, data) == BlobStored()
        with pytest.raises(ProtocolError, match=reason):
            list(taken(store, grant.name, BLOB))


def test_what_no_url_leads_to_is_swept(tmp_path, endpoint, client):
    store = bucket(tmp_path, endpoint, expires_s=1.0)
    url = store.show(ShowBlob(BLOB, DATA)).url
    time.sleep(2.1)  # the store's own clock, in whole seconds
    store.sweep()
    assert fetch(client, url, BLOB) == fx.WorkFailed("expired")
