"""Stores that earlier versions wrote: each is opened, brought up, and goes on.

The files under `tests/fixtures` are never made anew; a new version adds a folder of its own
(`python -m tests.kits.store_fixtures tests/fixtures/vN`).
"""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import tarfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from edgeveil.config.cloud import CloudSite
from edgeveil.config.edge import EdgeSite
from edgeveil.config.proxy import ProxySite
from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment
from edgeveil.errors import PrivacyError
from edgeveil.privacy.ledger import LEDGER_FILE, Ledger, read_ledger
from edgeveil.privacy.ledger_chain import spent
from edgeveil.privacy.policy import Limits
from edgeveil.protocol.messages import Manifest
from edgeveil_cloud.store import Store
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_edge.releases import ReleaseStore
from edgeveil_edge.store import SPLIT_SHARE, DeviceStore, split_fact
from edgeveil_proxy.registry import Registry
from edgeveil_proxy.spool import Spool
from edgeveil_tools.site.state_backup import restore

FOLDER = Path(__file__).parents[1] / "fixtures"
LINK = {"url": "mqtt://127.0.0.1:1883"}
VERSIONS = sorted(FOLDER.iterdir(), key=lambda folder: int(folder.name.removeprefix("v")))


@pytest.fixture(params=VERSIONS, ids=lambda folder: folder.name)
def version(request):
    return request.param


@pytest.fixture
def facts(version):
    return json.loads((version / "facts.json").read_text())


def put_back(version, role, folder, kind, **given):
    archive = folder / f"{role}.backup"
    archive.write_bytes(gzip.decompress((version / f"{role}.backup.gz").read_bytes()))
    site = kind(state_dir=folder / role, trust_file=folder / "trust.json", **given)
    restore(site, archive, vouched=True)
    return site.state_dir


@pytest.fixture
def edge(version, tmp_path):
    data = {"name": "digits", "source": "digits"}
    return put_back(version, "edge", tmp_path, EdgeSite, name="box", broker=LINK, data=data)


@pytest.fixture
def proxy(version, tmp_path):
    return put_back(version, "proxy", tmp_path, ProxySite, edge_broker=LINK, cloud_broker=LINK)


@pytest.fixture
def cloud(version, tmp_path):
    return put_back(version, "cloud", tmp_path, CloudSite, broker=LINK)


def schema(path):
    with closing(sqlite3.connect(path)) as db:
        (number,) = db.execute("PRAGMA user_version").fetchone()
        named = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
        rows = db.execute("SELECT version_num FROM alembic_version").fetchall() if named else []
    return number, rows


def as_written(version, to):
    """The files of a fixture's archives; one that is put back may be brought up."""
    for role in ("edge", "proxy", "cloud"):
        archive = io.BytesIO(gzip.decompress((version / f"{role}.backup.gz").read_bytes()))
        with tarfile.open(fileobj=archive) as tar:
            tar.extractall(to / role, filter="data")
    return {path.name: path for path in to.rglob("*") if path.is_file()}


def test_the_newest_fixture_has_the_schemas_of_this_version(tmp_path):
    """Who changes a schema adds the next fixture: `python -m tests.kits.store_fixtures FOLDER`."""
    new, kept = tmp_path / "new", as_written(VERSIONS[-1], tmp_path / "kept")
    new.mkdir()
    made = {
        "device.sqlite": DeviceStore,
        LEDGER_FILE: lambda path: Ledger(path, "digits"),
        "registry.sqlite": Registry,
        "spool.sqlite": Spool,
        "cloud.sqlite": lambda path: Store(f"sqlite:///{path}"),
    }
    for name, make in made.items():
        make(new / name).close()
    found = {name: schema(kept[name]) for name in made}
    assert found == {name: schema(new / name) for name in made}


def test_a_job_of_before_is_priced_together_with_the_next(edge, facts):
    account = read_ledger(edge / LEDGER_FILE).account("digits")
    (before,) = [entry.counted for entry in account.values() if entry.answers]
    paid, owner = facts["training_epsilon"], Limits(10, 13, 1e-4, 100)  # their sum is 16
    with closing(Ledger(edge / LEDGER_FILE, "digits")) as ledger:
        ledger.open_job(replace(before, job_id="next"), owner)
        ledger.commit("next", 1, before.events[:1], b"noised")
        assert paid < ledger.spent(delta=1e-4).epsilon < ledger.spent().epsilon < 1.5 * paid
        with pytest.raises(PrivacyError, match="lifetime_epsilon"):
            ledger.open_job(replace(before, job_id="third"), owner)


def test_a_device_keeps_its_identity_its_release_and_what_it_paid(edge, facts):
    assert DeviceIdentity.load_or_create(edge).device_id == facts["devices"][0]
    account = read_ledger(edge / LEDGER_FILE).account("digits")
    assert spent(account).epsilon == facts["training_epsilon"]
    assert spent(account, purpose="infer").epsilon == facts["inference_epsilon"]
    store = DeviceStore(edge / "device.sqlite")
    assert [receipt.state for receipt in store.receipts()] == ["counted"] * 4
    assert store.load().release_sequence > 0
    store.put_fact("more", "yes")
    with closing(Ledger(edge / LEDGER_FILE, "others")) as ledger:
        store.adopt_split(ledger.datasets or ("others",))
    split = [store.fact(split_fact(SPLIT_SHARE, name)) for name in ("digits", "others")]
    assert split == ["0.1", None], "that of the data set that it released"
    store.close()
    release = ReleaseStore(edge / "releases").current()
    assert release is not None
    assert release.job == "digits"


def test_a_proxy_keeps_its_devices_and_who_was_revoked(proxy, facts):
    registry = Registry(proxy / "registry.sqlite")
    revoked = facts["revoked"]
    assert set(registry.admitted()) == set(facts["devices"]) - {revoked}
    known = {one.device_id for one in registry.devices(revoked=True)}
    assert known == set(facts["devices"])
    assert registry.verify_key(revoked) is None
    assert registry.admit(Enrolment.make(SigningKey.generate(), OpeningKey.generate()))
    registry.close()
    spool = Spool(proxy / "spool.sqlite")
    # A spool of the newest versions keeps the job's last record, too.
    (kept,) = [one for one in spool.load().kept.values() if isinstance(one.header, Manifest)]
    assert kept.header.kind == "release"  # for devices that come later
    spool.close()


def test_a_cloud_keeps_its_jobs_and_goes_on(cloud, facts):
    store = Store(f"sqlite:///{cloud / 'cloud.sqlite'}")
    found = {job.id: job.status for job in store.jobs()}
    assert found == {facts["done"]: "completed", facts["waiting"]: "running"}
    assert [one.uploads for one in store.rounds(facts["done"])] == [5] * 4
    assert store.release(facts["done"]) is not None
    assert store.next_jobs()[0].id == facts["waiting"]
    assert store.cancel(facts["waiting"]).status == "cancelled"
    store.submit_job("another", b"job", bytes(32))
    store.close()
