"""Data sources, each declared by the file that implements it; see `source.py`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgeveil.config.data import TableForm
from edgeveil.data.records import Records
from edgeveil.data.schema import DataSchema
from edgeveil.errors import DataError
from edgeveil.parts.part import PartTable
from edgeveil.parts.sources.arrays import picture_records
from edgeveil.parts.sources.guess import guess
from edgeveil.parts.sources.source import FileSet
from edgeveil.parts.sources.source import Origin as Origin
from edgeveil.parts.sources.source import SourcePart as SourcePart
from edgeveil.parts.sources.tables import require_columns

SOURCES = TABLE = PartTable(__name__, SourcePart)


def source_part(source: str) -> SourcePart:
    name, colon, _ = source.partition(":")
    return SOURCES["python" if colon and name.strip() == "python" else source]


def has_own_test(source: str) -> bool:
    return source in SOURCES and SOURCES[source].test is not None


def published_files() -> dict[str, FileSet]:
    found = ((name, SOURCES[name].files) for name in SOURCES)
    return {name: files for name, files in found if files is not None}


def load_records(source: str, origin: Origin | None = None) -> Records:
    """Return the records of a source. Raises DataError for bad or changing data, UsageError."""
    chosen = origin or Origin()
    part = source_part(source)
    if part.name == "python":
        chosen = replace(chosen, function=source.partition(":")[2].strip())
    if chosen.schema is not None:
        require_schema(part, chosen.schema)
    try:
        before = _state(source, chosen)
        if chosen.schema is not None and not part.by_schema:
            plain = part.read(replace(chosen, schema=None))
            records = picture_records(plain.x, plain.y, chosen.schema, source)
        else:
            records = part.read(chosen)
        after = _state(source, chosen)
    except OSError as error:
        raise DataError(
            f"cannot be read ({error.strerror or type(error).__name__})",
            where=str(error.filename or chosen.path or source),
            fix="check that the file exists and is readable",
        ) from error
    changed = next((path for path, state in before.items() if after.get(path) != state), None)
    if changed is not None:
        fix = "do not write to it during a read; write another file and rename it"
        raise DataError("was changed while it was read", where=str(changed), fix=fix)
    return records


def require_header(source: str, header: bool | None, schema: DataSchema | None) -> None:
    """Raise DataError if neither the owner (`header`) nor a schema names a source's columns."""
    if "header" in source_part(source).reads:
        require_columns(header, schema)


def guessed_header(
    source: str,
    header: bool | None,
    path: Path | None,
    schema: DataSchema | None,
    form: TableForm | None = None,
) -> bool | None:
    """Return `header`, or a guess from the file. Only for tools and the cloud's test records."""
    if header is not None or "header" not in source_part(source).reads:
        return header
    if schema is None or schema.header is None:
        return True
    return path is not None and path.is_file() and guess(path, schema, form or TableForm()).header


def require_schema(part: SourcePart, schema: DataSchema) -> None:
    """Raise DataError if the source cannot be read by this kind of schema."""
    kind = schema.kind
    if part.by_schema in (kind, "any") or (schema.raw and kind == "image" and not part.by_schema):
        return
    readers = " or ".join(name for name in SOURCES if SOURCES[name].by_schema == kind)
    what = f"'{part.name}' is not read by a schema with '{kind}'"
    fix = f"store the records for {readers}, or use a job without data.schema"
    raise DataError(what, where="data.source", fix=fix)


def _state(source: str, origin: Origin) -> dict[Path, tuple[int, int, int]]:
    """Return (inode, bytes, mtime) of each existing file and its folders; {} for published sets."""
    if has_own_test(source):
        return {}
    named = [path for path in (origin.path, origin.labels_path) if path is not None]
    below = [inner for path in named if path.is_dir() for inner in path.iterdir() if inner.is_dir()]
    seen = {path: path.stat() for path in (*named, *below) if path.exists()}
    return {path: (one.st_ino, one.st_size, one.st_mtime_ns) for path, one in seen.items()}
