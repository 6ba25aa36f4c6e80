"""Backups of what a process must not lose, and a way back that forgets nothing that was paid."""

import io
import json
import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from edgeveil.config.cloud import CloudSite
from edgeveil.config.edge import EdgeSite
from edgeveil.config.proxy import ProxySite
from edgeveil.crypto.keys import MaskSeed
from edgeveil.errors import UsageError
from edgeveil.privacy.events import TwoValueEvent
from edgeveil.privacy.ledger import LEDGER_FILE, Ledger, read_ledger
from edgeveil.privacy.ledger_chain import spent
from edgeveil.privacy.policy import JobRequest, Limits
from edgeveil.protocol.messages import RoundId
from edgeveil.protocol.proxy_rounds import HeldUpload, ProxyMemory, RoundUnmasked, UploadKept
from edgeveil.protocol.proxy_uploads import UploadPart
from edgeveil.transport.process import OwnFolder, make_signing_key
from edgeveil_cloud.store import Store
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_proxy.claims import ClaimBook
from edgeveil_proxy.registry import Registry
from edgeveil_proxy.spool import SPOOL_FILE, Spool
from edgeveil_tools.cli import main
from edgeveil_tools.site import state_backup
from edgeveil_tools.site.state_backup import BackupError, back_up, restore
from tests.kits.site_folders import PowerFailure, contents, cut_after

EPSILON = {"epsilon_numerator": 1, "epsilon_denominator": 1}
EVENT = TwoValueEvent(what="answer", unit="record", purpose="infer", coordinates=1, **EPSILON)
WIDE = Limits(9, 9, 0.5, max_inference_epsilon=99)
LINK = {"url": "mqtt://127.0.0.1:1883"}


@pytest.fixture
def edge(tmp_path):
    data, trust = {"name": "digits", "source": "digits"}, tmp_path / "trust.json"
    state = tmp_path / "edge"
    site = EdgeSite(name="box", broker=LINK, state_dir=state, trust_file=trust, data=data)
    DeviceIdentity.load_or_create(site.state_dir)
    (site.state_dir / "releases").mkdir()
    (site.state_dir / "releases" / "model.onnx").write_bytes(b"model")
    pay(site, "first")
    return site


@pytest.fixture
def proxy(tmp_path):
    state, trust = tmp_path / "proxy", tmp_path / "trust.json"
    make_signing_key(state, "proxy")
    return ProxySite(edge_broker=LINK, cloud_broker=LINK, state_dir=state, trust_file=trust)


def pay(site, job):
    ledger = Ledger(site.state_dir / LEDGER_FILE, "digits")
    ledger.open_job(JobRequest(job, 0.0, (EVENT,)), WIDE)
    ledger.commit(job, 0, [EVENT], b"answer")
    ledger.close()


def paid(site):
    account = read_ledger(site.state_dir / LEDGER_FILE).account("digits")
    return spent(account, purpose="infer").epsilon


def test_a_device_is_as_it_was_and_the_archive_is_its_owners_alone(edge, tmp_path):
    archive = tmp_path / "box.backup"
    with OwnFolder(edge.state_dir):  # while it runs
        ledger = Ledger(edge.state_dir / LEDGER_FILE, "digits")
        made = back_up(edge, archive)
        ledger.close()
    assert archive.stat().st_mode & 0o777 == 0o600
    assert {"identity.key", LEDGER_FILE, "ledger.head", "releases/model.onnx"} <= set(made.files)
    keys = {path: raw for path, raw in contents(edge.state_dir).items() if path.endswith(".key")}
    shutil.rmtree(edge.state_dir)
    restore(edge, archive, vouched=True)
    assert keys.items() <= contents(edge.state_dir).items()
    assert paid(edge) == pytest.approx(1)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_an_older_ledger_never_comes_back_under_a_device_that_went_on(edge, tmp_path):
    back_up(edge, tmp_path / "old")
    pay(edge, "second")
    back_up(edge, tmp_path / "new")
    for damage in (lambda: None, (edge.state_dir / "ledger.head").unlink):
        damage()
        before = contents(edge.state_dir)
        for word in ({}, {"vouched": True}):
            with pytest.raises(BackupError):
                restore(edge, tmp_path / "old", replace=True, **word)
        assert contents(edge.state_dir).items() >= before.items()
    restore(edge, tmp_path / "new", replace=True, vouched=True)
    assert paid(edge) == pytest.approx(2)
    assert (tmp_path / "edge-before-restore-1" / "identity.key").exists(), "what was there is kept"


@pytest.mark.parametrize("gone", [True, False])
def test_where_no_ledger_can_be_read_it_takes_the_owners_word(edge, tmp_path, gone):
    back_up(edge, tmp_path / "box.backup")
    if gone:
        shutil.rmtree(edge.state_dir)
    else:
        for name in ("ledger.head", LEDGER_FILE):
            (edge.state_dir / name).write_bytes(b"no database")
    with pytest.raises(BackupError):
        restore(edge, tmp_path / "box.backup", replace=True)
    assert edge.state_dir.exists() is not gone
    restore(edge, tmp_path / "box.backup", replace=True, vouched=True)
    assert paid(edge) == pytest.approx(1)


@pytest.mark.parametrize("whole", [0, 1])
def test_after_a_restore_that_was_cut_short_no_older_one_comes_back(
    edge, tmp_path, monkeypatch, whole
):
    back_up(edge, tmp_path / "box.backup")
    before = contents(edge.state_dir)
    pay(edge, "second")
    back_up(edge, tmp_path / "new.backup")
    with monkeypatch.context() as patch, pytest.raises(PowerFailure):
        patch.setattr(Path, "rename", cut_after(whole, Path.rename))
        patch.setattr(state_backup.shutil, "rmtree", lambda _path: None)
        restore(edge, tmp_path / "new.backup", replace=True)
    with pytest.raises(BackupError):  # for the ledger is known, though its folder was moved away
        restore(edge, tmp_path / "box.backup", replace=True, vouched=True)
    assert paid(edge) == pytest.approx(2)
    assert before.keys() <= contents(edge.state_dir).keys()
    assert not list(tmp_path.glob(".restore-*"))


def test_two_restores_at_once_leave_each_other_alone(edge, tmp_path, monkeypatch):
    back_up(edge, tmp_path / "box.backup")
    shutil.rmtree(edge.state_dir)
    name = edge.state_dir.name + "-b-c"
    other = edge.model_copy(update={"state_dir": edge.state_dir.with_name(name)})
    unpacked = state_backup._unpacked

    def meanwhile(archive, scratch):
        found = unpacked(archive, scratch)
        monkeypatch.setattr(state_backup, "_unpacked", unpacked)
        with pytest.raises(UsageError):
            restore(other, archive, vouched=True)
        restore(edge, archive, vouched=True)
        assert (scratch / "state").exists()
        return found

    monkeypatch.setattr(state_backup, "_unpacked", meanwhile)
    restore(other, tmp_path / "box.backup", vouched=True)
    assert paid(other) == paid(edge) == pytest.approx(1)
    assert not list(tmp_path.glob(".restore-*"))


MODEL, LIST = "state/releases/model.onnx", "manifest.json"
LINK_OUT = tarfile.TarInfo(MODEL)
LINK_OUT.type, LINK_OUT.linkname = tarfile.SYMTYPE, "/etc/passwd"


def _outside(raw):
    said = json.loads(raw)
    said["files"]["../../escape"] = "0" * 64
    return {LIST: json.dumps(said).encode(), "state/../../escape": b"x"}


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found | {MODEL: b"other"},
        lambda found: {name: raw for name, raw in found.items() if name != MODEL},
        lambda found: found | {"state/more": b""},
        lambda found: found | _outside(found[LIST]),
        lambda found: {name: raw for name, raw in found.items() if name != LIST},
        lambda found: found | {LINK_OUT: b""},
        lambda _: {},
    ],
)
def test_a_tampered_archive_changes_nothing(edge, tmp_path, change):
    archive = tmp_path / "box.backup"
    back_up(edge, archive)
    with tarfile.open(archive) as tar:
        found = {one.name: tar.extractfile(one).read() for one in tar.getmembers()}
    changed = change(found)
    with tarfile.open(archive, "w") as tar:
        for name, raw in changed.items():
            one = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            one.size = len(raw)
            tar.addfile(one, io.BytesIO(raw))
    if not changed:
        archive.write_text("hello")
    before = contents(edge.state_dir)
    with pytest.raises(BackupError):
        restore(edge, archive, replace=True)
    assert contents(edge.state_dir) == before
    assert not (tmp_path / "escape").exists()


def test_nothing_is_put_over_a_running_process_another_partys_state_or_without_being_asked(
    edge, proxy, tmp_path
):
    config, archive = tmp_path / "edge.yaml", tmp_path / "box.backup"
    said = edge.model_dump(mode="json", exclude_unset=True)
    config.write_text(json.dumps({"edge": said}))
    asked = ["restore", "--config", str(config), "--from", str(archive)]
    assert main(["backup", "--config", str(config), "--out", str(archive)]) == 0
    other = edge.model_copy(update={"state_dir": tmp_path / "other"})
    DeviceIdentity.load_or_create(other.state_dir)
    pay(other, "theirs")
    back_up(other, tmp_path / "theirs")
    before = contents(edge.state_dir)
    assert main(asked) == UsageError.exit_code
    with OwnFolder(edge.state_dir), pytest.raises(UsageError):
        restore(edge, archive, replace=True)
    for site in (edge, proxy):
        with pytest.raises(BackupError):
            restore(site, tmp_path / "theirs", replace=True)
    with pytest.raises(UsageError):
        back_up(other, archive)
    with pytest.raises(UsageError):
        back_up(edge.model_copy(update={"state_dir": tmp_path / "none"}), tmp_path / "empty")
    assert contents(edge.state_dir).items() >= before.items()
    assert main([*asked, "--replace"]) == 0


def test_a_proxy_comes_back_as_a_registry_that_was_rebuilt(proxy, tmp_path):
    files = [proxy.state_dir / name for name in ("registry.sqlite", "claims.sqlite")]
    device = DeviceIdentity.load_or_create(tmp_path / "device").enrolment()
    with closing(Registry(files[0])) as registry, closing(ClaimBook(files[1])) as book:
        registry.admit(device)
        book.add(["unused"], 3600)
        lineage = registry.lineage
    back_up(proxy, tmp_path / "proxy.backup")
    restore(proxy, tmp_path / "proxy.backup", replace=True)
    with closing(Registry(files[0])) as registry, closing(ClaimBook(files[1])) as book:
        assert registry.admitted() == [device.device_id]
        assert registry.lineage != lineage
        assert book.all() == []


@pytest.mark.parametrize("earlier", [False, True])
def test_a_proxys_spool_comes_back_without_seeds_and_sums_no_job_it_knew(proxy, tmp_path, earlier):
    Registry(proxy.state_dir / "registry.sqlite").close()
    file, at, seed = proxy.state_dir / SPOOL_FILE, RoundId(b"J" * 16, 1, 1), b"s" * 32
    spool = Spool(file)
    spool.store(UploadPart(at, 0, b"sealed"))
    spool.store(UploadKept(at, "box", HeldUpload((0,), b"", 0, MaskSeed(seed))))
    name = spool.load().name
    if earlier:
        with closing(sqlite3.connect(file)) as db:
            db.executescript(
                "DROP TABLE memory; DROP TABLE earlier; DROP TABLE halves; PRAGMA user_version = 4;"
            )
    back_up(proxy, tmp_path / "proxy.backup")
    spool.store(RoundUnmasked(at, b"question"))  # of which the backup does not know
    spool.close()
    restore(proxy, tmp_path / "proxy.backup", replace=True)
    assert {path.name for path in proxy.state_dir.glob("spool*")} == {SPOOL_FILE, "spool"}
    assert not any(seed in raw for raw in contents(proxy.state_dir).values())
    with closing(Spool(file)) as spool:
        memory = spool.load()
    assert memory == ProxyMemory(summed={at.job_id}, name=memory.name)
    assert memory.name != name
    assert list((proxy.state_dir / "spool").iterdir()) == []


def test_a_cloud_comes_back_with_its_jobs_and_numbers_on(tmp_path):
    site = CloudSite(broker=LINK, state_dir=tmp_path / "cloud", trust_file=tmp_path / "trust.json")
    make_signing_key(site.state_dir, "cloud")
    url = f"sqlite:///{site.state_dir / 'cloud.sqlite'}"
    with closing(Store(url)) as store:
        job = store.submit_job("digits", b"job", bytes(32)).id
        back_up(site, tmp_path / "cloud.backup")
        number = store.next_number()
    shutil.rmtree(site.state_dir)
    restore(site, tmp_path / "cloud.backup")
    with closing(Store(url)) as store:
        assert [one.id for one in store.jobs()] == [job]
        assert store.next_number() > number
