"""Interface of data sources: a function from an `Origin` to `Records`.

A source with a `test` is a published data set, dealt by index; others hold an owner's own records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from edgeveil.data.encoding import Encoded, Given
from edgeveil.data.records import MAX_BYTES, Records
from edgeveil.data.schema import DataSchema
from edgeveil.data.split import RecordLimit
from edgeveil.errors import DataError
from edgeveil.parts.part import Part

if TYPE_CHECKING:
    from edgeveil.config.data import Images, TableForm

Half = Literal["train", "test"]


@dataclass(frozen=True)
class Origin:
    """Location of records, and the job's schema; `function` is `module:function` of `python`."""

    path: Path | None = None
    labels_path: Path | None = None
    header: bool | None = None  # csv: whether the first line names the columns
    form: TableForm | None = None  # csv; None: the default
    label_column: str | None = None
    function: str | None = None
    images: Images | None = None
    test_records: int | None = None  # digits, published sets; None: the default number
    test_share: float | None = None  # own files: share held back for the cloud; None: none
    test_fold: int = 0  # number of the share held back
    schema: DataSchema | None = None
    max_bytes: int = MAX_BYTES
    given: Given | None = None  # of `memory`
    limit: RecordLimit | None = None  # with a schema; None: all records, or RecordsError


def require_library(module: str, source: str) -> None:
    """Raise DataError unless the library of a source is installed, an extra of its name."""
    if find_spec(module) is None:
        what = f"the source '{source}' needs {module}, which is not installed"
        raise DataError(what, where="data.source", fix=f"pip install 'edgeveil[{source}]'")


def require_folder(folder: Path | None, fix: str) -> Path:
    if folder is None or not folder.is_dir():
        what = "no such folder" if folder else "no folder is named"
        raise DataError(what, where=str(folder or "data.path"), fix=fix)
    return folder


@dataclass(frozen=True)
class FileSet:
    """Files of a published data set by half; `below`: top folder of its archive."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    below: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return self.train + self.test

    def missing(self, folder: Path) -> list[str]:
        return [name for name in self.names if self._found(folder, name) is None]

    def paths(self, folder: Path | None, half: Half) -> tuple[Path, ...]:
        """Return one half's files in order. Raises DataError that lists the missing files."""
        fix = f"name the folder with {', '.join(self.names)}"
        place, paths = require_folder(folder, fix), list[Path]()
        for name in self.train if half == "train" else self.test:
            path = self._found(place, name)
            if path is None:
                plain = " (nor one without .gz)" if name.endswith(".gz") else ""
                raise DataError(f"has no {name}{plain}", where=str(place), fix=fix)
            paths.append(path)
        return tuple(paths)

    def _found(self, folder: Path, name: str) -> Path | None:
        plain = name.removesuffix(".gz")
        dotted = plain.replace("-idx", ".idx")
        for place in (folder, folder / self.below):
            for one in (name, plain, dotted, f"{dotted}.gz"):
                if (place / one).is_file():
                    return place / one
        return None


@dataclass(frozen=True, kw_only=True)
class SourcePart(Part):
    """Declaration of a data source; `read` raises DataError.

    `place`: kind of `path`. `reads`: other keys used; `demands`: fixes for missing ones. `faults`
    and `tallies` report dropped records and columns to the owner. `by_schema`: kind of schema
    supported. Published sets: `test` reads the cloud's half; `shape`, `classes`, `files`."""

    family: ClassVar[str] = "sources"
    key: ClassVar[str] = "local_run.data.source"
    what: ClassVar[str] = "data source"

    read: Callable[[Origin], Records]
    place: Literal["", "file", "folder"] = ""
    reads: tuple[str, ...] = ()
    demands: Mapping[str, str] = field(default_factory=dict)
    faults: Callable[[Origin], list[str]] | None = None
    by_schema: Literal["", "columns", "image", "audio", "any"] = ""
    tallies: Callable[[Origin, DataSchema], Encoded] | None = None
    test: Callable[[Origin], Records] | None = None
    shape: tuple[int, ...] = ()
    classes: int = 0
    files: FileSet | None = None


def published_part(
    files: FileSet, read: Callable[[tuple[Path, ...], int], Records], **declaration: Any
) -> SourcePart:
    """Declare a published data set; `read` takes one half's files and the size limit in bytes."""

    def train(origin: Origin) -> Records:
        return read(files.paths(origin.path, "train"), origin.max_bytes)

    def test(origin: Origin) -> Records:
        records = read(files.paths(origin.path, "test"), origin.max_bytes)
        count = len(records) if origin.test_records is None else origin.test_records
        if not 0 <= count <= len(records):
            what = f"cannot test on {count} of {len(records)} records"
            fix = f"choose 0 to {len(records)}, or leave it out for all"
            raise DataError(what, where="test_records", fix=fix)
        return Records(records.x[:count], records.y[:count])

    return SourcePart(
        read=train,
        test=test,
        place="folder",
        needs="the folder of the published files",
        files=files,
        **declaration,
    )
