"""Data sources, and how the records of one data set are dealt to devices."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr

from edgeveil.config.base import Block, Mix, SitePath, named_in
from edgeveil.registry import known_names, part_named

if TYPE_CHECKING:
    from edgeveil.data.encoding import Given

_PYTHON = re.compile(r"python:\s*[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def source_name(name: str) -> str:
    if name.startswith("python:"):
        if not _PYTHON.fullmatch(name):
            raise ValueError("must be `python: module:function`, both names of Python")
        return name
    if name == "python":
        raise ValueError("names no function; write `python: module:function`")
    return named_in("data source", "sources")(name)


SourceName = Annotated[str, AfterValidator(source_name)]
_ROUNDING = 1e-9  # of shares like 1/3
MAX_SIDE = 4096  # of a picture, as it becomes a record
Pixels = Annotated[int, Field(ge=1, le=MAX_SIDE)]
FolderName = Annotated[str, Field(min_length=1, max_length=255)]


class Images(Block):
    """The form of records from pictures of an image folder."""

    size: tuple[Pixels, Pixels] = Field(examples=[[28, 28]])
    """Height and width; pictures of another size are scaled to it."""
    colours: Literal["grey", "rgb"] = "grey"
    """`grey`: records of [height, width]; `rgb`: of [3, height, width]."""
    classes: tuple[FolderName, ...] | None = Field(
        default=None, min_length=1, max_length=10000, examples=[["cat", "dog"]]
    )
    """Folders of the classes, class 0 first. Required in a site file; in a run, null: all found."""


class TableForm(Block):
    """The form of a file of `csv`, as its owner states it; a job has no part in it."""

    separator: Literal[",", ";", "\t", "|", " "] = ","
    """Sign between cells; `" "`: runs of blanks and tabs."""
    decimal: Literal[".", ","] = "."
    """Decimal sign."""
    thousands: Literal["", ",", ".", " ", "'"] = ""
    """Sign between groups of digits; empty: none."""
    dates: Literal["iso", "day_first", "month_first"] = "iso"
    """Order of dates: 2024-12-31, 31.12.2024 or 12/31/2024."""
    encoding: Literal["utf-8", "utf-16", "cp1252"] = "utf-8"
    """Encoding; bytes that it lacks become U+FFFD."""
    comment: str = Field(default="", max_length=8, examples=["#"])
    """Lines that begin with it are left out; empty: none."""
    skip_lines: int = Field(default=0, ge=0, le=10000)
    """Lines left out at the beginning of the file."""
    multiline: bool = False
    """Line breaks within quotes belong to the cell (RFC 4180); false: each line is a record, which
    no quote of another one can reach."""

    def _mixes(self) -> Iterator[Mix]:
        if self.decimal == self.thousands:
            text = f"is '{self.decimal}', as the decimal sign; leave one of them out"
            yield Mix(("thousands", "decimal"), text)


class DataFiles(Block):
    """The files of a data source, if any."""

    path: SitePath | None = None
    """The file; for `idx` the images, for `images` and published sets their folder."""
    labels_path: SitePath | None = None
    """The labels of `idx`."""
    header: bool | None = Field(default=None, exclude_if=lambda given: given is None)
    """Of `csv`: whether line 1 names the columns (else `data.schema.header`). Devices need it."""
    form: TableForm | None = Field(default=None, exclude_if=lambda given: given is None)
    """Of `csv`: separator, decimal sign and so on; null: `,` and `.` in UTF-8 on devices, and what
    `edgeveil run` finds in the file, which it prints."""
    label_column: str | None = Field(default=None, min_length=1, max_length=128)
    """The label's column in `csv` and `parquet`; none: the last one."""
    images: Images | None = None
    """The form of the records of `images`."""
    _given: Given | None = PrivateAttr(default=None)  # of `memory`: in no file, and in no dump

    @property
    def given(self) -> Given | None:
        """Records in memory, of the source `memory`."""
        return self._given

    def holding(self, given: Given | None) -> Self:
        """Return a copy with records in memory."""
        copy = self.model_copy()
        copy._given = given
        return copy


DEFAULT_PARTITION = "iid"


class Partition(Block):
    """How the records of one data set are partitioned among simulated devices."""

    kind: Annotated[
        str,
        AfterValidator(named_in("partition", "partitions", DEFAULT_PARTITION)),
        Field(json_schema_extra=lambda schema: schema.update(enum=known_names("partitions"))),
    ] = DEFAULT_PARTITION
    """`iid`, `n_class` (few classes), `dirichlet` (uneven classes), `quantity_skew` (sizes)."""
    classes_per_device: int = Field(default=2, ge=1, le=10000)
    """Classes of one device; only for `n_class`."""
    alpha: float = Field(default=0.5, gt=0, le=1e6)
    """Evenness of `dirichlet` and `quantity_skew`: 0.1 is very uneven, 100 nearly even."""
    lq_user: float = Field(default=0.0, ge=0, le=1)
    """Share of the devices that hold records of low quality."""
    lq_data: float = Field(default=0.0, ge=0, le=1)
    """Share of such a device's records that are of low quality: of another class, and noisy."""
    lq_range: tuple[float, float] | None = Field(default=None, examples=[[0, 255]])
    """Least and greatest value, for custom files; the noise's deviation is half of the range."""


class Shard(Block):
    """Partitions one data set among several devices of a demonstration, and takes one share."""

    devices: int = Field(ge=1, le=10**6, examples=[20])
    """Shares to make."""
    index: int = Field(ge=0, examples=[0])
    """The share of this device, from 0."""
    partition: Partition = Partition()
    """How records are partitioned."""
    seed: int = Field(default=7, ge=0, lt=1 << 63)
    """Seed of the partition; the same on all devices of the demonstration."""
    classes: int | None = Field(default=None, ge=1, le=10**6, examples=[10])
    """Number of classes of a custom file that is partitioned or disturbed by class."""


class DataSource(DataFiles):
    """A source of records."""

    name: str = Field(min_length=1, max_length=64, examples=["digits"])
    """The data set's permanent name, used by the ledger and by jobs as `data.source`."""
    source: SourceName = Field(max_length=300, examples=["digits"])
    """`digits` (of scikit-learn), a published set, a kind of file, or `python: module:function`."""
    test_records: int | None = Field(default=None, ge=0, le=10**9)
    """The cloud's test of digits (null: 360) and published sets (null: their test half)."""
    test_share: float | None = Field(default=None, ge=0, lt=1, examples=[0.2])
    """For other sources: test share of the cloud, chosen by each record's hash; null: none."""
    test_fold: int = Field(default=0, ge=0, lt=1000, exclude_if=operator.not_)
    """Index of the test share, from 0: 0.2 gives five folds that together cover all records."""
    test_path: SitePath | None = Field(default=None, exclude_if=operator.not_)
    """In place of a share: a test file in the form of `path`, read only by the cloud."""
    shard: Shard | None = Field(default=None, exclude_if=operator.not_)
    """For a device of a demonstration: its share of the data set; null: all of it."""


def _source(source: str) -> Any | None:
    return part_named("sources", "python" if source.startswith("python:") else source)


def _published(source: str) -> bool:
    part = _source(source)
    return part is not None and part.test is not None


def data_mixes(data: DataSource, at: str) -> Iterator[Mix]:
    source = f"{at}.source"
    part = _source(data.source)
    if part is not None and part.place and data.path is None:
        yield Mix((source, f"{at}.path"), f"{data.source} is read from a {part.place}; add path")
    for key, text in {} if part is None else part.demands.items():
        if getattr(data, key) is None:
            yield Mix((source, f"{at}.{key}"), text)
    if data.images is not None and data.images.classes is None:
        text = "the existing folders must not define the classes; add classes: [cat, dog]"
        yield Mix((f"{at}.images.classes", f"{at}.images"), text)
    yield from held_back_mixes(data.source, data.test_records, data.test_share, at, source)
    if data.test_path is not None and data.test_share is not None:
        text = "names a file to test on, and test_share holds records back for it; leave one out"
        yield Mix((f"{at}.test_path", f"{at}.test_share"), text)
    if data.test_fold and (data.test_fold + 1) * (data.test_share or 1.0) > 1 + _ROUNDING:
        text = (
            f"there is no fold {data.test_fold} of test_share {data.test_share}; folds count from 0"
        )
        yield Mix((f"{at}.test_fold", f"{at}.test_share"), text)
    yield from unread_mixes(data, data.source, at, source)
    shard = data.shard
    if shard is None:
        return
    yield from dealing_mixes(shard.partition, data.source, f"{at}.shard.partition", source)
    published, at = _published(data.source), f"{at}.shard"
    if shard.classes is not None and published:
        yield Mix((f"{at}.classes", source), f"is for own files, not for {data.source}; drop it")
    rule = part_named("partitions", shard.partition.kind)
    by_class = bool(shard.partition.lq_data) or (rule is not None and rule.by_class)
    if shard.classes is None and not published and by_class:
        text = f"deals or disturbs by class; add classes: 10 to {at}, as the job has it"
        yield Mix((f"{at}.partition", f"{at}.classes"), text)
    if shard.index >= shard.devices:
        text = (
            f"must be below shard.devices = {shard.devices}, got {shard.index}; folds count from 0"
        )
        yield Mix((f"{at}.index", f"{at}.devices"), text)


def held_back_mixes(
    source: str, records: int | None, share: float | None, at: str, source_key: str
) -> Iterator[Mix]:
    """Yield test settings of the wrong kind: a count in place of a share, or a share of a count."""
    if records is not None and not _published(source):
        text = f"counts records, and of {source} a share is held back; write test_share: 0.2"
        yield Mix((f"{at}.test_records", source_key), text)
    if share is not None and _published(source):
        text = f"is for files of your own, and {source} counts its test; write test_records"
        yield Mix((f"{at}.test_share", source_key), text)


def unread_mixes(files: DataFiles, source: str, at: str, source_key: str) -> Iterator[Mix]:
    """Yield keys of `files` that the source, named at `source_key`, does not read."""
    for key in ("header", "form", "labels_path", "label_column", "images"):
        readers = _readers("sources", key)
        if getattr(files, key) is not None and source not in readers:
            named = ", ".join(readers[:-1]) + f" and {readers[-1]}" * (len(readers) > 1)
            text = f"is only for {named or readers[0]}, and the source is {source}"
            yield Mix((f"{at}.{key}", source_key), f"{text}; drop it")


def unstated_header(data: Mapping[str, Any]) -> str:
    """Return why a device's data block must have `header`, or ""."""
    if data.get("header") is not None or data.get("source") not in _readers("sources", "header"):
        return ""
    text = "without it a device answers no job; add header: true where the file's first line"
    return f"{text} names the columns, header: false where it does not"


def _readers(family: str, key: str) -> list[str]:
    named = ((name, part_named(family, name)) for name in known_names(family))
    return [name for name, part in named if part is None or key in part.reads]


def dealing_mixes(rule: Partition, source: str, at: str, source_key: str) -> Iterator[Mix]:
    yield from partition_mixes(rule, at)
    published = _published(source)
    if published and rule.lq_range is not None:
        yield Mix((f"{at}.lq_range", source_key), f"is for own files, not for {source}; drop it")
    if rule.lq_data and rule.lq_range is None and not published:
        text = "is noise in a range that must not be read from your records; add lq_range: [0, 255]"
        yield Mix((f"{at}.lq_data", f"{at}.lq_range"), text)


def partition_mixes(rule: Partition, at: str) -> Iterator[Mix]:
    if bool(rule.lq_user) != bool(rule.lq_data):
        set_key, zero = ("lq_user", "lq_data") if rule.lq_user else ("lq_data", "lq_user")
        text = f"disturbs nothing while {zero} is 0; set both, or neither"
        yield Mix((f"{at}.{set_key}", f"{at}.{zero}"), text)
    if rule.lq_range is not None and rule.lq_range[0] >= rule.lq_range[1]:
        text = f"must be least and greatest value, got {list(rule.lq_range)}; write [0, 255]"
        yield Mix((f"{at}.lq_range",), text)
    for key in ("classes_per_device", "alpha"):
        if getattr(rule, key) == Partition.model_fields[key].default:
            continue
        kinds = _readers("partitions", key)
        if rule.kind not in kinds:
            text = f"is only for {' and '.join(kinds)}, and the kind is {rule.kind}; remove it"
            yield Mix((f"{at}.{key}", f"{at}.kind"), text)
