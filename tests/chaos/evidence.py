"""Content of a stopped site's disks, read without the code under test where possible."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgeveil.errors import EdgeVeilError
from edgeveil.evaluation.onnx_session import open_session
from edgeveil.jobs import compile_canonical
from edgeveil.jobs.plan import Plan
from edgeveil.privacy.ledger import LEDGER_FILE, read_ledger
from edgeveil.privacy.ledger_chain import JobAccount
from edgeveil.protocol.tensors import unpack_tensors
from edgeveil_cloud.stored_jobs import wire_id
from edgeveil_edge.releases import ReleaseStore
from edgeveil_edge.store import DeviceStore, UploadReceipt
from edgeveil_proxy.spool import SPOOL_FILE
from edgeveil_tools.site.broker_rules import of_cell

HASH_BYTES = 32
CLOUD_STORE = Path("state") / "cloud" / "cloud.sqlite"
ANSWERS_FILE = "answers"


@dataclass(frozen=True)
class CommittedRound:
    """`committed_s`: seconds since 1970. `cells`: those whose batches or sums are in it."""

    index: int
    attempt: int
    uploads: int
    accepted: tuple[bytes, ...] = field(repr=False)
    committed_s: float
    cells: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class JobFacts:
    """One job of the cloud's store; `faults` are those of its model files."""

    id: str
    status: str
    reason: str
    plan: Plan = field(repr=False)
    commits: tuple[CommittedRound, ...]
    release_digest: str = ""
    state: bytes = field(default=b"", repr=False)  # tensors after the last committed round
    faults: tuple[str, ...] = ()

    @property
    def wire(self):
        return wire_id(self.id)


@dataclass(frozen=True)
class DeviceFacts:
    """`links`: (job, round) of each release in the ledger's chain; `releases`: its tensors.

    `release`: job on the wire (hex) and digest of the model in use."""

    number: int
    trains: bool
    receipts: tuple[UploadReceipt, ...]
    links: tuple[tuple[str, int], ...]
    ledger: dict[str, JobAccount]
    release: tuple[str, str] | None
    releases: dict[tuple[str, int], bytes] = field(default_factory=dict, repr=False)
    faults: tuple[str, ...] = ()
    cell: str = ""
    wrong_masks: bool = False


@dataclass(frozen=True)
class UnmaskedChoice:
    """A set of uploads for which a cell's proxy unmasked a round."""

    job: bytes  # on the wire
    round: int
    attempt: int
    question: bytes = field(repr=False)
    cell: str = ""


@dataclass(frozen=True)
class MaskAnswer:
    """A sum of masks that a proxy computed for the cloud."""

    job: bytes
    round: int
    question: str
    digest: str
    size: int


@dataclass(frozen=True)
class DeletedHalf:
    """A proxy's half of a round's noise; `opened`: newest round opened then, None: job ended."""

    job: bytes
    round: int
    opened: int | None


@dataclass(frozen=True)
class Evidence:
    jobs: tuple[JobFacts, ...]
    devices: tuple[DeviceFacts, ...]
    logs: dict[str, str]
    secrets: tuple[str, ...] = field(default=(), repr=False)
    device_ids: tuple[str, ...] = ()
    unmasked: tuple[UnmaskedChoice, ...] = ()
    cells: tuple[str, ...] = ("",)
    answers: tuple[MaskAnswer, ...] = ()
    deleted: tuple[DeletedHalf, ...] = ()
    left: tuple[tuple[bytes, int], ...] = ()  # job and round of halves still at a proxy


def collect(site, logs, wrong_masks=()):
    """Read the files of a stopped site; `wrong_masks`: devices whose masks are wrong."""
    folder, plan = site.spec.folder, site.spec
    texts = {path.stem: path.read_text("utf-8", "replace") for path in logs.glob("*.log")}
    for path in folder.glob("broker-*/broker.log"):
        texts[path.parent.name] = path.read_text("utf-8", "replace")
    secrets = [word for users in site.passwords.values() for word in users.values()]
    return Evidence(
        jobs=tuple(stored_jobs(folder / CLOUD_STORE)),
        devices=tuple(
            device_facts(plan, number, number in wrong_masks)
            for number in range(1, plan.devices + 1)
        ),
        logs=texts,
        secrets=(*secrets, site.token_file.read_text("ascii").strip()),
        device_ids=site.device_ids,
        unmasked=tuple(
            choice
            for cell in plan.cell_names
            for choice in unmasked_choices(spool_of(plan, cell), cell)
        ),
        cells=plan.cell_names,
        answers=tuple(mask_answers(folder / ANSWERS_FILE)),
        deleted=tuple(DeletedHalf(*row) for row in _rows_of(plan, "chaos_halves")),
        left=tuple(row[:2] for row in _rows_of(plan, "halves")),
    )


def mask_answers(path):
    for line in path.read_text("ascii").splitlines() if path.exists() else ():
        job, round, question, digest, size = line.split()
        yield MaskAnswer(bytes.fromhex(job), int(round), question, digest, int(size))


def _rows_of(plan, table):
    for cell in plan.cell_names:
        with closing(sqlite3.connect(f"file:{spool_of(plan, cell)}?mode=ro", uri=True)) as db:
            yield from db.execute(f"SELECT * FROM {table}").fetchall()


def spool_of(plan, cell):
    return plan.folder / "state" / of_cell("proxy", cell) / SPOOL_FILE


def stored_jobs(path):
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        jobs = db.execute("SELECT id, status, reason, canonical FROM jobs ORDER BY number")
        return [_job(db, *row) for row in jobs.fetchall()]


def _job(db, job, status, reason, canonical):
    rows = db.execute(
        'SELECT "index", attempt, uploads, accepted, committed_at FROM exchanges'
        ' WHERE job = ? ORDER BY "index"',
        (job,),
    )
    commits = tuple(
        CommittedRound(i, a, u, _hashes(packed), s, _cells_in(db, job, i, a))
        for i, a, u, packed, s in rows.fetchall()
    )
    state = db.execute('SELECT "index", tensors FROM states WHERE job = ?', (job,)).fetchone()
    release = db.execute("SELECT onnx, safetensors FROM releases WHERE job = ?", (job,)).fetchone()
    faults = []
    if commits and (state is None or state[0] != commits[-1].index):
        faults.append("its state is not that of its last committed round")
    for what, raw in (("state", state and state[1]), ("released weights", release and release[1])):
        faults += _tensor_faults(what, raw) if raw else []
    if release and (fault := _graph_fault(release[0])):
        faults.append(fault)
    digest = hashlib.sha256(release[0]).hexdigest() if release else ""
    plan = compile_canonical(canonical)
    packed = bytes(state[1]) if state else b""
    return JobFacts(job, status, reason, plan, commits, digest, packed, tuple(faults))


def device_facts(plan, number, wrong_masks):
    state, ledger = plan.edge_state(number), {}
    found = {"receipts": (), "links": (), "ledger": ledger, "release": None}
    try:
        with closing(DeviceStore(state / "device.sqlite")) as store:
            found["receipts"] = tuple(store.receipts())
        for account in read_ledger(state / LEDGER_FILE).accounts.values():
            ledger |= account
        with closing(sqlite3.connect(state / LEDGER_FILE)) as db:
            said = db.execute("SELECT job, exchange FROM links WHERE kind = 'released'")
            found["links"] = tuple(said.fetchall())
            found["releases"] = tapped_releases(db)
        if held := ReleaseStore(state / "releases").current():
            found["release"] = (str(held.meta.get("job_id")), held.digest)
    except (EdgeVeilError, sqlite3.Error) as error:
        found["faults"] = (str(error),)
    trains = number <= plan.devices - plan.infer_only
    cell = plan.cell_of(number)
    return DeviceFacts(number, trains, cell=cell, wrong_masks=wrong_masks, **found)


def _hashes(packed):
    return tuple(packed[i : i + HASH_BYTES] for i in range(0, len(packed), HASH_BYTES))


def _tensor_faults(what, raw):
    try:
        tensors = unpack_tensors(raw)
    except (EdgeVeilError, ValueError) as error:
        return [f"its {what} cannot be read: {error}"]
    return [
        f"its {what} hold a value that is not finite ('{name}')"
        for name, array in tensors.items()
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all()
    ]


def _graph_fault(onnx):
    try:
        open_session(onnx)
    except EdgeVeilError as error:
        return f"its released model cannot be read: {error}"
    return ""


# --- taps: triggers in the parties' databases, which copy each row in the same transaction, so that
# no kill can separate the two ---

_BUSY_S = 10.0
_TAP_LEDGER = """
CREATE TABLE IF NOT EXISTS chaos_kept (number INTEGER PRIMARY KEY, payload BLOB NOT NULL);
CREATE TRIGGER IF NOT EXISTS chaos_keep BEFORE DELETE ON payloads
BEGIN INSERT OR IGNORE INTO chaos_kept VALUES (OLD.number, OLD.payload); END;
"""
_TAP_SPOOL = """
CREATE TABLE IF NOT EXISTS chaos_unmasked (job BLOB, round INTEGER, attempt INTEGER, question BLOB);
CREATE TRIGGER IF NOT EXISTS chaos_unmask BEFORE INSERT ON unmasked
BEGIN INSERT INTO chaos_unmasked VALUES (NEW.job, NEW.round, NEW.attempt, NEW.question); END;
CREATE TABLE IF NOT EXISTS chaos_halves (job BLOB, round INTEGER, opened INTEGER);
CREATE TRIGGER IF NOT EXISTS chaos_half BEFORE DELETE ON halves
BEGIN INSERT INTO chaos_halves VALUES
(OLD.job, OLD.round, (SELECT MAX(round) FROM unmasked WHERE job = OLD.job)); END;
"""
_TAP_STORE = """
CREATE TABLE IF NOT EXISTS chaos_opened
(job TEXT, exchange INTEGER, attempt INTEGER, cell TEXT, digest BLOB);
CREATE TRIGGER IF NOT EXISTS chaos_open AFTER INSERT ON openings
BEGIN INSERT INTO chaos_opened VALUES (NEW.job, NEW.exchange, NEW.attempt, NEW.cell, NEW.digest);
END;
"""
_ALL_RELEASES = """
SELECT links.job, links.exchange, found.payload FROM links
JOIN (SELECT number, payload FROM payloads UNION SELECT number, payload FROM chaos_kept) AS found
USING (number) WHERE links.kind = 'released'
"""
_CELLS_IN = """
SELECT DISTINCT cell FROM chaos_opened JOIN batches USING (job, digest)
WHERE job = ? AND exchange = ? AND attempt = ? AND batches."index" = exchange ORDER BY cell
"""


def tap_ledger(ledger):
    """Keep every release of a device; raises sqlite3.Error without a ledger."""
    _tap(ledger, _TAP_LEDGER)


def tap_spool(spool):
    """Keep every choice that a proxy unmasks, also if its table ignores or replaces it.

    Keep when it deletes a half of correlated noise."""
    _tap(spool, _TAP_SPOOL)


def tap_site(plan):
    """Tap ledger and spool of a site of one cell."""
    tap_spool(spool_of(plan, ""))
    for number in range(1, plan.devices + 1):
        tap_ledger(plan.edge_state(number) / LEDGER_FILE)


def tap_store(store):
    """Keep which cell's batches the cloud opened, since a commit deletes these rows."""
    _tap(store, _TAP_STORE)


def _tap(path, script):
    with closing(sqlite3.connect(f"file:{path}?mode=rw", timeout=_BUSY_S, uri=True)) as db:
        db.executescript(script)


def _tapped(db, table):
    wanted = "SELECT 1 FROM sqlite_master WHERE name = ?"
    return db.execute(wanted, (table,)).fetchone() is not None


def unmasked_choices(spool, cell=""):
    """Return all choices that the proxy unmasked, in order; () without a tap."""
    with closing(sqlite3.connect(f"file:{spool}?mode=ro", uri=True)) as db:
        if not _tapped(db, "chaos_unmasked"):
            return ()
        rows = db.execute("SELECT job, round, attempt, question FROM chaos_unmasked")
        return tuple(UnmaskedChoice(job, at, k, question, cell) for job, at, k, question in rows)


def _cells_in(db, job, round, attempt):
    """Return the cells whose batches a commit contains; without a tap the unnamed one."""
    if not _tapped(db, "chaos_opened"):
        return ("",)
    return tuple(cell for (cell,) in db.execute(_CELLS_IN, (job, round, attempt)))


def tapped_releases(db):
    """Return the tensors of all releases, by (job on the wire in hex, round)."""
    return {(job, round): bytes(payload) for job, round, payload in db.execute(_ALL_RELEASES)}
