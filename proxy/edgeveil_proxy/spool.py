"""The proxy's durable store of broadcasts, uploads and batches.

Ciphertext lies in files, their rows in one SQLite file. A file is durable before its row and
removed after it, so that a crash leaves only files without rows, swept at the next start. The
transaction that stores a batch deletes which device sent which upload.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import msgspec
from msgspec import structs

from edgeveil.crypto.keys import KEY_BYTES, MaskSeed, OpeningKey
from edgeveil.errors import ProtocolError
from edgeveil.protocol import messages as m
from edgeveil.protocol import proxy
from edgeveil.protocol import proxy_broadcasts as broadcasts
from edgeveil.protocol import proxy_rounds as rounds
from edgeveil.protocol.proxy_uploads import TakePut, UploadPart
from edgeveil.protocol.transfer import Data, PutTaken
from edgeveil.storage import FileData, SqliteFile, StorageError, sync_folder
from edgeveil_proxy.shuffle import MaskedStream, PiecedData, Shuffle, shuffle_round

SPOOL_FILE = "spool.sqlite"
_VERSION = 8  # of the tables below
_SCHEMA = """
CREATE TABLE IF NOT EXISTS kept (number INTEGER PRIMARY KEY AUTOINCREMENT,
  digest BLOB UNIQUE, job BLOB, kind TEXT, signed BLOB);
CREATE TABLE IF NOT EXISTS uploads (job BLOB, round INTEGER, attempt INTEGER, device TEXT,
  groups BLOB, digest BLOB, slot INTEGER, PRIMARY KEY (job, round, attempt, device)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batches (job BLOB, round INTEGER, attempt INTEGER, signed BLOB,
  delivered INTEGER DEFAULT 0, PRIMARY KEY (job, round, attempt));
CREATE TABLE IF NOT EXISTS ended (number INTEGER PRIMARY KEY AUTOINCREMENT,
  job BLOB UNIQUE, note BLOB);
CREATE TABLE IF NOT EXISTS statement (one INTEGER PRIMARY KEY CHECK (one = 1), note BLOB);
"""
# Last answer of each device to each job; without a job: number from which all are known.
_ANSWERED = """
CREATE TABLE answered (device TEXT, job BLOB, number INTEGER, deposit BLOB,
  PRIMARY KEY (device, job)) WITHOUT ROWID;
"""
# Of masked rounds: key of seeds, seeds, the request each round is unmasked for; and ended jobs.
_MASKS = """
ALTER TABLE kept ADD COLUMN key BLOB DEFAULT x'';
ALTER TABLE uploads ADD COLUMN seed BLOB DEFAULT x'';
ALTER TABLE batches ADD COLUMN seeds BLOB DEFAULT x'';
CREATE TABLE unmasked (job BLOB, round INTEGER, attempt INTEGER, question BLOB,
  PRIMARY KEY (job, round)) WITHOUT ROWID;
CREATE TABLE summed (job BLOB PRIMARY KEY) WITHOUT ROWID;
"""
# Ranges of a batch in its round's file; empty if it has its own file.
_PIECES = """
ALTER TABLE batches ADD COLUMN pieces BLOB DEFAULT x'';
"""
# Random name of this store, to detect a lost or restored one.
_NAMED = """
CREATE TABLE memory (one INTEGER PRIMARY KEY CHECK (one = 1), name BLOB);
INSERT INTO memory VALUES (1, randomblob(16));
"""
# Devices of earlier versions, which search all stanzas.
_EARLIER = """
CREATE TABLE earlier (device TEXT PRIMARY KEY) WITHOUT ROWID;
"""
# Their protocol level; known devices count as earlier ones until their next hello.
_KNOWING = """
ALTER TABLE earlier ADD COLUMN knows INTEGER DEFAULT 0;
INSERT OR IGNORE INTO earlier SELECT DISTINCT device, 1 FROM answered;
"""
# This proxy's halves of correlated noise.
_HALVES = """
CREATE TABLE halves (job BLOB, round INTEGER, attempt INTEGER, correlated BLOB, question BLOB,
  half BLOB, PRIMARY KEY (job, round)) WITHOUT ROWID;
"""
_STEPS = {1: _ANSWERED, 2: _MASKS, 3: _PIECES, 4: _NAMED, 5: _EARLIER, 6: _KNOWING, 7: _HALVES}
_DELIVERED = "UPDATE batches SET delivered = 1, seeds = x'', pieces = x''"
_UNMASKED = "SELECT job, round, attempt, question FROM unmasked WHERE job = ? AND round = ?"
_SINCE = b""  # job of the row with the number from which all answers are known
ANSWERED_JOBS_KEPT = 256  # of each device

ENDED_KEPT = rounds.ProxySettings.ended_kept
_encode = msgspec.msgpack.encode


class Spool:
    """The store at `path` and its folder, owned by one process; all methods raise StorageError.

    `keep` and `shuffled` may run in another thread."""

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(
            path,
            "the spool",
            _SCHEMA + "".join(_STEPS.values()),
            secure_delete=True,
            version=_VERSION,
            steps=_STEPS,
        )
        self._together = self._emptied = False
        self._counted_on: set[str] = set()  # files that this transaction's rows need
        self._streams: dict[str, MaskedStream] = {}  # by file of uploads
        with self._storage_errors():
            self._files = _SpoolFiles(path.with_suffix(""))

    def close(self) -> None:
        self._files.close_all()
        self._file.close()

    def store(self, item: object) -> None:
        """Store an item durably, at once or at the end of `together`; conflicts are errors."""
        with nullcontext() if self._together else self.together():
            self._apply(item)

    @contextmanager
    def together(self) -> Iterator[None]:
        self._together = True
        try:
            with self._storage_errors(), self._file.transaction():
                yield
                for name in self._counted_on:
                    self._files.sync(name)
        except BaseException:
            self._files.dropped.clear()
            raise
        finally:
            self._together = False
            self._counted_on.clear()
        with self._storage_errors():
            for name in self._files.remove_dropped():
                self._streams.pop(name, None)
        self._forget()

    def _apply(self, item: object) -> None:
        match item:
            case UploadPart(at=at, offset=offset, data=data):
                self._files.write(uploads_of(at), offset, data)
            case broadcasts.BroadcastPart(digest=digest, offset=offset, data=data):
                self._files.write(arriving_of(digest), offset, data)
            case _:
                with self._file.transaction() as db:
                    self._change(db, item)
                self._emptied |= not isinstance(
                    item, rounds.UploadKept | proxy.AnswersFrom | proxy.DeviceKnows
                )

    def _change(self, db: sqlite3.Connection, item: object) -> None:
        match item:
            case rounds.KeptBroadcast():
                self._keep(db, item)
            case rounds.UploadKept(at=at, device=device, held=held):
                place = (_encode(held.groups), held.digest, held.slot, _raw(held.seed))
                db.execute(
                    "INSERT OR IGNORE INTO uploads VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (*structs.astuple(at), device, *place),
                )
                self._counted_on.add(uploads_of(at))
                _add_answer(db, item)
            case proxy.AnswersFrom(device=device, number=number):
                row = (device, _SINCE, number, b"")
                db.execute("INSERT OR REPLACE INTO answered VALUES (?, ?, ?, ?)", row)
            case proxy.DeviceKnows(device=device, knows=knows) if knows < m.KNOWS_CHECKS:
                db.execute("INSERT OR REPLACE INTO earlier VALUES (?, ?)", (device, knows))
            case proxy.DeviceKnows(device=device):
                db.execute("DELETE FROM earlier WHERE device = ?", (device,))
            case rounds.BatchKept(at=at, signed=signed, seeds=seeds, pieces=pieces):
                places = _encode(pieces) if pieces else b""
                db.execute(
                    "INSERT OR IGNORE INTO batches VALUES (?, ?, ?, ?, 0, ?, ?)",
                    (*structs.astuple(at), _encode(signed), b"".join(map(_raw, seeds)), places),
                )
                self._forget_uploads(db, at)
                if pieces:
                    self._files.dropped.discard(uploads_of(at))
                    self._files.close(uploads_of(at))
                    self._streams.pop(uploads_of(at), None)
            case rounds.UploadsDropped(at=at):
                self._forget_uploads(db, at)
            case rounds.RoundUnmasked(at=at, question=question):
                row = (*structs.astuple(at), question)
                if row not in db.execute(_UNMASKED, row[:2]).fetchall():
                    db.execute("INSERT INTO unmasked VALUES (?, ?, ?, ?)", row)
            case rounds.NoiseHalf(at=at, correlated=correlated, question=question, half=half):
                row = (*structs.astuple(at), _encode(correlated), question, half)
                db.execute("INSERT OR IGNORE INTO halves VALUES (?, ?, ?, ?, ?, ?)", row)
            case rounds.BatchDelivered(at=at) | rounds.RoundDropped(at=at):
                if isinstance(item, rounds.RoundDropped):
                    _run(db, "DELETE FROM uploads", at)
                    own = "SELECT 1 FROM halves WHERE job = ? AND round = ? AND attempt = ?"
                    if db.execute(own, structs.astuple(at)).fetchone():
                        used = "DELETE FROM halves WHERE job = ? AND round < ?"
                        db.execute(used, (at.job_id, at.round))
                _run(db, _DELIVERED, at)
                self._files.dropped.add(uploads_of(at))
                self._files.dropped.add(batch_of(at))
            case broadcasts.BroadcastDropped(digest=digest):
                self._files.dropped.add(arriving_of(digest))
                if not db.execute("SELECT 1 FROM kept WHERE digest = ?", (digest,)).fetchone():
                    self._files.dropped.add(kept_of(digest))
            case broadcasts.ReleaseReplaced(digest=digest):
                self._drop_kept(db, "digest = ?", digest)
            case broadcasts.JobEnded(job_id=job_id, note=note):
                self._end(db, job_id, note)
            case broadcasts.ReleaseStated(note=note, gone=gone):
                db.execute("INSERT OR REPLACE INTO statement VALUES (1, ?)", (_encode(note),))
                for digest in gone:
                    self._drop_kept(db, "digest = ?", digest)

    def _forget_uploads(self, db: sqlite3.Connection, at: m.RoundId) -> None:
        _run(db, "UPDATE uploads SET slot = -1, digest = x'', seed = x''", at)
        self._files.dropped.add(uploads_of(at))

    def _forget(self) -> None:
        """Truncate the write-ahead log, which still holds which device sent which upload."""
        if self._emptied:
            with self._file.guard("emptied") as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._emptied = False

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"the spool's files cannot be used: {error.strerror}",
                where=str(error.filename or self._files.folder),
                fix="check its free disk space and this user's permissions",
            ) from error

    def keep(self, task: broadcasts.KeepBroadcast) -> rounds.KeptBroadcast:
        """Verify a broadcast and store it durably; raises ProtocolError `bad_digest`."""
        digest = task.header.blob.digest
        arriving, whole = (self._files.path(name(digest)) for name in (arriving_of, kept_of))
        with self._storage_errors():
            arriving.touch(mode=0o600)  # an empty blob has no parts
            data = FileData(arriving)
            if len(data) != task.header.blob.size_bytes or data.digest() != digest:
                raise ProtocolError("bad_digest")
            with arriving.open("rb") as file:
                os.fdatasync(file.fileno())
            arriving.rename(whole)
            sync_folder(whole.parent)
        masked = isinstance(task.header, m.Manifest) and task.header.masked
        key = OpeningKey.generate() if masked else None
        return rounds.KeptBroadcast(task.signed, task.header, data, key)

    def sink(self, blob: m.Blob) -> _BroadcastSink:
        return _BroadcastSink(self._files.path(arriving_of(blob.digest)))

    def take(self, task: TakePut, blocks: Iterable[bytes]) -> PutTaken:
        place = task.offset
        path = self._files.path(uploads_of(task.at))
        with self._storage_errors():
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                for block in blocks:
                    place += os.pwrite(file, block, place)
                os.fdatasync(file)
            finally:
                os.close(file)
            sync_folder(path.parent)
        return PutTaken()

    def shuffled(self, task: rounds.ShuffleRound, shuffle: Shuffle) -> rounds.ShuffledBatch:
        names = (uploads_of(task.at), batch_of(task.at))
        with self._storage_errors():
            uploads, batch = (self._files.path(name) for name in names)
            if task.streamed:
                return self._stream(task.at).finish(task, batch, shuffle)
            return shuffle_round(task, uploads, batch, shuffle)

    def streamed(self, task: rounds.StreamUploads, shuffle: Shuffle) -> rounds.StreamedUploads:
        with self._storage_errors():
            try:
                return self._stream(task.at).add(task, shuffle)
            finally:
                if not self._files.path(uploads_of(task.at)).exists():  # dropped meanwhile
                    self._streams.pop(uploads_of(task.at), None)

    def _stream(self, at: m.RoundId) -> MaskedStream:
        name = uploads_of(at)
        known = self._streams.get(name)
        return known or self._streams.setdefault(name, MaskedStream(self._files.path(name)))

    def answered(self, asked: proxy.FindAnswered) -> proxy.Answered:
        """Return the jobs that a device answered lately: at most `most`, oldest first."""
        query = "SELECT number, job, deposit FROM answered WHERE device = ? AND number > ?"
        with self._file.guard() as db:
            newer = (asked.device, asked.since)
            rows = db.execute(f"{query} AND job <> x'' ORDER BY number", newer).fetchall()
            since = db.execute(f"{query} AND job = x''", (asked.device, -1)).fetchone()
        sent = rows[: asked.most]
        number = sent[-1][0] if len(sent) < len(rows) else asked.known
        jobs = tuple(
            m.EncryptedJobState(job, encrypted_state) for _number, job, encrypted_state in sent
        )
        return proxy.Answered(number, jobs, since is not None and since[0] <= asked.since)

    def _keep(self, db: sqlite3.Connection, kept: rounds.KeptBroadcast) -> None:
        header, job_id = kept.header, kept.header.at.job_id
        kind = header.kind
        if kind == "round":
            self._drop_rounds(db, job_id)
        if kind == "commit":
            self._drop_key(db, header.at)
        if kind != "release":
            self._drop_kept(db, "job = ? AND kind = ?", job_id, kind)
        db.execute(
            "INSERT OR REPLACE INTO kept (digest, job, kind, signed, key) VALUES (?, ?, ?, ?, ?)",
            (header.blob.digest, job_id, kind, _encode(kept.signed), _raw(kept.key)),
        )
        self._files.close(arriving_of(header.blob.digest))
        self._files.dropped.discard(kept_of(header.blob.digest))

    def _drop_key(self, db: sqlite3.Connection, at: m.RoundId) -> None:
        """Delete the key of a committed round, but not of a next one."""
        query = "SELECT digest, signed FROM kept WHERE job = ? AND key <> x''"
        for digest, signed in db.execute(query, (at.job_id,)).fetchall():
            _, header = _signed(signed)
            if isinstance(header, m.Manifest) and header.at == at:
                db.execute("UPDATE kept SET key = x'' WHERE digest = ?", (digest,))

    def _drop_kept(self, db: sqlite3.Connection, which: str, *values: bytes | str) -> None:
        for (digest,) in db.execute(f"SELECT digest FROM kept WHERE {which}", values):  # noqa: S608 - constants
            self._files.dropped.add(kept_of(digest))
        db.execute(f"DELETE FROM kept WHERE {which}", values)  # noqa: S608 - constants

    def _drop_rounds(self, db: sqlite3.Connection, job_id: bytes) -> None:
        for table in ("uploads", "batches"):
            where = f"FROM {table} WHERE job = ?"
            for key in db.execute(f"SELECT DISTINCT job, round, attempt {where}", (job_id,)):
                self._files.dropped.add(uploads_of(m.RoundId(*key)))
                self._files.dropped.add(batch_of(m.RoundId(*key)))
            db.execute(f"DELETE {where}", (job_id,))

    def _end(self, db: sqlite3.Connection, job_id: bytes, note: m.Note) -> None:
        self._drop_rounds(db, job_id)
        self._drop_kept(db, "job = ? AND kind NOT IN ('release', 'commit')", job_id)
        found = "SELECT DISTINCT job FROM unmasked WHERE job = ?"
        db.execute(f"INSERT OR IGNORE INTO summed {found}", (job_id,))
        for table in ("unmasked", "halves"):
            db.execute(f"DELETE FROM {table} WHERE job = ?", (job_id,))  # noqa: S608 - constants
        row = (job_id, _encode(note))
        db.execute("INSERT OR REPLACE INTO ended (job, note) VALUES (?, ?)", row)
        old = "FROM ended WHERE number <= (SELECT MAX(number) FROM ended) - ?"
        for (job,) in db.execute(f"SELECT job {old}", (ENDED_KEPT,)).fetchall():
            self._drop_kept(db, "job = ? AND kind = 'commit'", job)
        db.execute(f"DELETE {old}", (ENDED_KEPT,))

    def put_back(self) -> None:
        """Prepare a restored spool: drop seeds, forbid unmasking known jobs, and rename it."""
        with self._file.transaction() as db:
            for table in ("kept", "uploads", "batches", "unmasked", "ended"):
                db.execute(f"INSERT OR IGNORE INTO summed SELECT DISTINCT job FROM {table}")  # noqa: S608 - constants
            for table in ("uploads", "batches", "unmasked", "halves"):
                db.execute(f"DELETE FROM {table}")  # noqa: S608 - constants
            db.execute("DELETE FROM kept WHERE kind = 'round'")
            db.execute("UPDATE memory SET name = randomblob(16)")
        self._emptied = True
        self._forget()

    def load(self) -> rounds.ProxyMemory:
        """Return the stored state and sweep the remains of incomplete writes."""
        with self._storage_errors():
            with self._file.guard() as db:
                memory = self._load(db)
            known = {kept_of(digest) for digest in memory.kept}
            known |= {
                uploads_of(kept.at) if kept.pieces else batch_of(kept.at)
                for kept in memory.batches.values()
            }
            known |= {uploads_of(kept.at) for kept in memory.uploads if kept.held.slot >= 0}
            self._files.sweep(known)
        return memory

    def _load(self, db: sqlite3.Connection) -> rounds.ProxyMemory:
        memory = rounds.ProxyMemory()
        for signed_bytes, key in db.execute("SELECT signed, key FROM kept ORDER BY number"):
            signed, header = _signed(signed_bytes)
            if isinstance(header, m.Manifest | m.Commit):
                data = FileData(self._files.path(kept_of(header.blob.digest)))
                opening = OpeningKey(key) if key else None
                memory.kept[header.blob.digest] = rounds.KeptBroadcast(
                    signed, header, data, opening
                )
        columns = "device, groups, digest, slot, seed, job, round, attempt"
        rows = db.execute(f"SELECT {columns} FROM uploads")  # noqa: S608 - constants
        for device, groups, digest, slot, seed, *where in rows:
            held_groups = msgspec.msgpack.decode(groups, type=tuple[int, ...])
            held = rounds.HeldUpload(held_groups, digest, slot, MaskSeed(seed) if seed else None)
            memory.uploads.append(rounds.UploadKept(m.RoundId(*where), device, held))
        columns = "signed, delivered, seeds, pieces, job, round, attempt"
        rows = db.execute(f"SELECT {columns} FROM batches")  # noqa: S608 - constants
        for signed_bytes, delivered, seeds, raw, *where in rows:
            at = m.RoundId(*where)
            if delivered:
                memory.delivered.add(at)
                continue
            signed, header = _signed(signed_bytes)
            if isinstance(header, m.Batch):
                pieces = msgspec.msgpack.decode(raw, type=_Pieces) if raw else ()
                path = self._files.path(uploads_of(at) if pieces else batch_of(at))
                whole: Data = PiecedData(path, pieces) if pieces else FileData(path)
                kept = rounds.BatchKept(at, signed, header, whole, _seeds(seeds), pieces)
                memory.batches[at] = kept
        for job, number, attempt, question in db.execute("SELECT * FROM unmasked"):
            at = m.RoundId(job, number, attempt)
            memory.unmasked[job, number] = rounds.RoundUnmasked(at, question)
        for job, number, attempt, correlated, *kept_half in db.execute("SELECT * FROM halves"):
            noise = msgspec.msgpack.decode(correlated, type=m.CorrelatedNoise)
            at = m.RoundId(job, number, attempt)
            memory.halves[job, number] = rounds.NoiseHalf(at, noise, *kept_half)
        memory.summed.update(job for (job,) in db.execute("SELECT job FROM summed"))
        for job, note in db.execute("SELECT job, note FROM ended ORDER BY number"):
            memory.ended[job] = msgspec.msgpack.decode(note, type=m.Note)
        counts = "SELECT device, max(number) FROM answered GROUP BY device"
        memory.answered = dict(db.execute(counts).fetchall())
        memory.earlier.update(db.execute("SELECT device, knows FROM earlier").fetchall())
        for (note,) in db.execute("SELECT note FROM statement"):
            memory.statement = msgspec.msgpack.decode(note, type=m.Note)
        (memory.name,) = db.execute("SELECT name FROM memory").fetchone()
        return memory


_Pieces = tuple[tuple[int, int], ...]


def _signed(raw: bytes) -> tuple[m.Envelope, object]:
    signed = msgspec.msgpack.decode(raw, type=m.Envelope)
    return signed, m.decode_header(signed)


def _raw(key: MaskSeed | OpeningKey | None) -> bytes:
    return key.to_bytes() if key else b""


def _seeds(raw: bytes) -> tuple[MaskSeed, ...]:
    starts = range(0, len(raw), KEY_BYTES)
    return tuple(MaskSeed(raw[start : start + KEY_BYTES]) for start in starts)


def _add_answer(db: sqlite3.Connection, kept: rounds.UploadKept) -> None:
    device = (kept.device,)
    since = db.execute("SELECT 1 FROM answered WHERE device = ? AND job = x''", device).fetchone()
    if since is None or not kept.number:
        return
    row = (kept.device, kept.at.job_id, kept.number, kept.encrypted_state)
    db.execute("INSERT OR REPLACE INTO answered VALUES (?, ?, ?, ?)", row)
    oldest = db.execute(
        "SELECT number FROM answered WHERE device = ? AND job <> x''"
        " ORDER BY number DESC LIMIT 1 OFFSET ?",
        (kept.device, ANSWERED_JOBS_KEPT),
    ).fetchone()
    if oldest is not None:  # answers up to it become unknown
        gone = (kept.device, oldest[0])
        db.execute("DELETE FROM answered WHERE device = ? AND number <= ? AND job <> x''", gone)
        row = (kept.device, _SINCE, oldest[0], b"")
        db.execute("INSERT OR REPLACE INTO answered VALUES (?, ?, ?, ?)", row)


def _run(db: sqlite3.Connection, statement: str, at: m.RoundId) -> None:
    db.execute(statement + " WHERE job = ? AND round = ? AND attempt = ?", structs.astuple(at))


class _BroadcastSink:
    """Writes a broadcast's bytes in order to its file; raises OSError."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        self._file = os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0)

    def restart(self) -> None:
        self._file.seek(0)

    def write(self, data: memoryview, /) -> None:
        while data:
            data = data[self._file.write(data) or 0 :]

    def finish(self) -> bytes:
        self._file.close()
        return b""


def _of_round(kind: str) -> Callable[[m.RoundId], str]:
    return lambda at: f"{kind}-{at.job_id.hex()}-{at.round}-{at.attempt}"


uploads_of, batch_of = _of_round("uploads"), _of_round("batch")


def arriving_of(digest: bytes) -> str:
    return f"arriving-{digest.hex()}"


def kept_of(digest: bytes) -> str:
    return f"kept-{digest.hex()}"


class _SpoolFiles:
    """Files in `folder`, made with mode 0600, for one thread; all methods raise OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._open: dict[str, int] = {}
        self._dirty: set[str] = set()
        self.dropped: set[str] = set()  # to be removed
        self._made = False

    def path(self, name: str) -> Path:
        return self.folder / name

    def write(self, name: str, offset: int, data: bytes) -> None:
        if name not in self._open:
            self._made |= not self.path(name).exists()
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            self._open[name] = os.open(self.path(name), flags, 0o600)
        remaining = memoryview(data)
        while remaining:
            written = os.pwrite(self._open[name], remaining, offset)
            offset, remaining = offset + written, remaining[written:]
        self._dirty.add(name)

    def sync(self, name: str) -> None:
        if name in self._dirty:
            os.fdatasync(self._open[name])
            self._dirty.discard(name)
        if self._made:
            sync_folder(self.folder)
            self._made = False

    def remove_dropped(self) -> set[str]:
        gone, self.dropped = self.dropped, set()
        for name in gone:
            self.close(name)
            with suppress(FileNotFoundError):
                self.path(name).unlink()
        return gone

    def sweep(self, known: Collection[str]) -> None:
        for path in self.folder.iterdir():
            if path.name not in known:
                path.unlink()

    def close(self, name: str) -> None:
        self._dirty.discard(name)
        descriptor = self._open.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    def close_all(self) -> None:
        for name in list(self._open):
            self.close(name)
