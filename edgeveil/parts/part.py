"""Parts: the names of the YAML, each declared by the file that implements it.

A file ends with `PART = …` or `PARTS = (…, …)`. A `PartTable` imports the files of its package and
the plug-ins (`plugins.py`) on first use; there is no central list of names."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from threading import RLock
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import CoreSchema, PydanticOmit, core_schema

from edgeveil.config.base import Keys as Keys
from edgeveil.config.base import as_tuples as as_tuples
from edgeveil.config.base import filled_from_file as filled_from_file
from edgeveil.errors import OF_OTHERS_CODE, DataError, UsageError
from edgeveil.plugins import PluginRefusedError, join, state
from edgeveil.registry import nearest

PrivacyStatus = Literal["proven", "claimed", "none"]


def only_for(**defaults: Any) -> WrapValidator:
    """Restrict a field to some names of its block, each with its own default.

    Declare the field after the name, as `Annotated[T, only_for(...)] = some_names()`.
    For other names the value is `...`, which canonical bytes omit."""

    def check(value: Any, inner: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        name = info.data.get("method", info.data.get("name"))
        if name in defaults:
            value = defaults[name] if value is None else value
            return inner(as_tuples(value))
        if name is not None and value is not None and value is not ...:
            raise ValueError(f"unknown key here, it belongs to {' and '.join(defaults)}")
        return ...

    return WrapValidator(check)


def some_names(**field: Any) -> Any:
    """Return the Field of a key with `only_for`; further parameters are Field's."""
    omitted = {"exclude_if": lambda value: value is ...}
    return Field(default=None, validate_default=True, **omitted | field)


def omittable(default: Any, **field: Any) -> Any:
    """Return the Field of a later key, omitted at its default: earlier jobs keep their bytes."""
    return Field(default=default, exclude_if=lambda value: bool(value == default), **field)


def import_function(target: str, where: str) -> Any:
    """Return the object at `module:function`. Raises DataError if the import fails."""
    module, _, name = target.partition(":")
    try:
        return getattr(import_module(module), name)
    except OF_OTHERS_CODE as error:  # the owner's module may raise anything
        what = f"cannot be imported, {type(error).__name__}: {error}"
        raise DataError(what, where=where, fix="install the module, check both names") from error


@dataclass(frozen=True, kw_only=True)
class Part:
    """Declaration of a named part.

    `source`: author and year. `needs`: requirements on the job or device. `reveals`: information
    disclosed. `privacy`: default status of the part's own release, None without one; `note`:
    settings that change the status. `example`: YAML that uses the part."""

    family: ClassVar[str]
    """The folder's name, and the first half of an entry point's name."""
    key: ClassVar[str]
    """Key of a job file whose value is the name."""
    what: ClassVar[str]
    """Singular of the family, for error messages."""

    source: str
    example: str
    needs: str = "nothing"
    reveals: str = "nothing of its own"
    privacy: PrivacyStatus | None = None
    note: str = ""
    name: str = ""
    summary: str = ""


@dataclass(frozen=True, kw_only=True)
class BlockPart(Part):
    tag: ClassVar[str] = "name"
    """The key of the block that holds the part's name."""
    block: ClassVar[type[BaseModel]]
    """Base class of the family's parameters."""

    parameters: type[BaseModel]
    settled: Mapping[str, Any] = field(default_factory=dict)
    """Keys of earlier versions with the only value accepted now; canonical bytes keep them."""

    def __post_init__(self) -> None:
        key = self.parameters.model_fields[self.tag]
        if not self.name:
            object.__setattr__(self, "name", get_args(key.annotation)[0])

    def made(self, **keys: Any) -> Any:
        return self.parameters(**{self.tag: self.name, **keys})


REMOVED = {
    "features": {
        "patches": "feature map 'patches' was removed; use pictures with patches: 600",
        "hashed_text": "no feature map; write text: {} for a column of data.schema",
        "logmel": "no feature map; write audio: {} in data.schema",
    },
    "methods": {name: f"method '{name}' was removed; use dp_sgd" for name in ("gep", "rgp")},
    "models": {"low_rank_head": "model 'low_rank_head' was removed; use mlp on the job's features"},
}
"""Names of earlier versions, or of no part, by family, with the replacement to use."""

P = TypeVar("P", bound=Part)
B = TypeVar("B", bound=BlockPart)


class PartTable(Generic[P]):
    """All parts of one family by name: those of the package, then those of plug-ins."""

    def __init__(self, package: str, kind: type[P]) -> None:
        self.package, self.kind = package, kind
        self._entries: dict[str, P] = {}
        self.refused: dict[str, str] = {}
        """Unavailable names, of plug-ins or earlier versions, with the reason."""
        self._lock = RLock()
        self._state: object = self  # differs from any state of plug-ins

    @cached_property
    def built_in(self) -> dict[str, P]:
        folder = import_module(self.package)
        found: dict[str, P] = {}
        for file in pkgutil.iter_modules(folder.__path__):
            module = import_module(f"{self.package}.{file.name}")
            single = getattr(module, "PART", None)
            for part in getattr(module, "PARTS", () if single is None else (single,)):
                if part.name in found:
                    raise UsageError(f"two files declare {self.kind.what} '{part.name}'")
                found[part.name] = part
        return dict(sorted(found.items()))

    def _found(self) -> dict[str, P]:
        now = state()
        if self._state != now:
            with self._lock:
                joined, refused = join(self.kind, self.built_in)
                removed = REMOVED.get(self.kind.family, {}).items()
                self.refused = {n: why for n, why in removed if n not in joined} | refused
                self._entries = {**self.built_in, **joined}
                self._state = now
        return self._entries

    def __getitem__(self, name: str) -> P:
        found = self._found()
        if name in found:
            return found[name]
        if name in self.refused:
            raise UsageError(self.refused[name])
        raise UsageError(f"unknown {self.kind.what} '{name}'", fix=nearest(name, list(found)))

    def __iter__(self) -> Iterator[str]:
        return iter(self._found())

    def __contains__(self, name: object) -> bool:
        return name in self._found()

    def get(self, name: str) -> P | None:
        return self._found().get(name)

    def names(self) -> list[str]:
        return list(self._found())

    def known(self) -> list[str]:
        return [*self._found(), *self.refused]


class OneOf(Generic[B]):
    """Annotation of a field for the block of any part of a table: a union tagged by name."""

    def __init__(self, table: PartTable[B]) -> None:
        self._table = table

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        choices: dict[Any, CoreSchema] = {}
        made: dict[type[Any], CoreSchema] = {}
        for name in self._table:
            parameters = self._table[name].parameters
            if parameters not in made:
                made[parameters] = handler.generate_schema(parameters)
            choices[name] = made[parameters]
        for name, reason in self._table.refused.items():
            choices[name] = _refusing(reason)
        return core_schema.tagged_union_schema(choices, discriminator=self._table.kind.tag)


def _refusing(reason: str) -> CoreSchema:
    def refuse(_given: Any) -> Any:
        raise PluginRefusedError(reason)

    def omit(_schema: CoreSchema, _handler: GetJsonSchemaHandler) -> Any:
        raise PydanticOmit

    return core_schema.no_info_plain_validator_function(
        refuse, metadata={"pydantic_js_functions": [omit]}
    )
