"""A part is one name of the YAML, declared by the file that implements it.

A file ends with `PART = …` or `PARTS = (…, …)`. A `PartTable` finds them, and those of plug-ins
(`plugins.py`), when first asked for a name; nothing else lists names.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from threading import RLock
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import CoreSchema, PydanticOmit, core_schema

from edgeveil.errors import OF_OTHERS_CODE, DataError, UsageError
from edgeveil.plugins import PluginRefusedError, join, state
from edgeveil.registry import Table, nearest

PrivacyStatus = Literal["proven", "claimed", "none"]


class PartBlock(BaseModel):
    """A block of a job file: frozen, without unknown keys, each key described by its docstring."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def only_for(**defaults: Any) -> WrapValidator:
    """A key that some names of its block take, with the default of each; refused with others.

    Declare the field after the name, as `Annotated[T, only_for(...)] = Field(**SOME_NAMES_KEY)`.
    Its value is `...` for other names, and stays out of canonical bytes.
    """

    def check(value: Any, inner: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        name = info.data.get("method", info.data.get("name"))
        if name in defaults:
            value = defaults[name] if value is None else value
            return inner(as_tuples(value))
        if value is not None and value is not ...:
            raise ValueError(f"unknown key here, it belongs to {' and '.join(defaults)}")
        return ...

    return WrapValidator(check)


SOME_NAMES_KEY: dict[str, Any] = {
    "default": None,
    "validate_default": True,
    "exclude_if": lambda value: value is ...,
}


def as_tuples(value: Any) -> Any:
    """A value without lists: past a validator that runs before, JSON's are no tuples any more."""
    if isinstance(value, dict):
        return {key: as_tuples(inner) for key, inner in value.items()}
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def filled_from_file(
    given: Any, info: ValidationInfo, facts: Callable[[dict[str, Any], Path], dict[str, Any]]
) -> Any:
    """A block that names a `file`, with its `facts`(block, folder of the job file); others as they
    are. Only where a job file is read is a file opened. Raises ValueError for one in a sent job,
    and for what the file says otherwise."""
    given = as_tuples(given)
    if not isinstance(given, dict) or not isinstance(given.get("file"), str):
        return given
    folder = (info.context or {}).get("folder")
    if folder is None:
        raise ValueError("a job that is sent names no file; submit it with edgeveil job submit")
    try:
        found = facts(given, Path(folder))
    except DataError as error:
        raise ValueError(f"{given['file']}: {error.what}; {error.fix}") from error
    for key in found.keys() & given.keys() - {"file"}:
        if given[key] != found[key]:
            value = str(found[key])[:80]
            raise ValueError(f"the file's {key} is {value}, not as given; leave {key} out")
    return {**given, **found}


def own_function(target: str, where: str) -> Any:
    """What an owner's `module:function` names. Raises DataError where it cannot be imported."""
    module, _, name = target.partition(":")
    try:
        return getattr(import_module(module), name)
    except OF_OTHERS_CODE as error:  # the owner's module may raise anything
        raise DataError(
            f"cannot be imported, {type(error).__name__}: {error}",
            where=where,
            fix="install the module, check both names",
        ) from error


def says_nothing(default: object) -> Callable[[object], bool]:
    """`exclude_if` of a later key: at its default, canonical bytes leave it out, so that earlier
    jobs keep theirs and earlier versions read them."""
    return lambda value: bool(value == default)


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a part says of itself.

    `source`: author and year. `needs`: what a job or box must give. `reveals`: what a party learns.
    `privacy`: status of its own release by default, None without one; `note`: what changes that.
    `example`: YAML that names it. `name` and `summary` default to the only value of the parameters'
    tag and its docstring.
    """

    family: ClassVar[str]
    """The folder's name, and the first half of an entry point's name."""
    key: ClassVar[str]
    """The key of a job file that takes the name."""
    what: ClassVar[str]
    """The family in the singular, as errors say it."""

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
    """A part that a block of a job file names, with parameters: a pydantic model."""

    tag: ClassVar[str] = "name"
    """The key of the block that holds the part's name."""
    block: ClassVar[type[BaseModel]]
    """What every such block of the family is; the parameters are one of its kind."""

    parameters: type[Any]
    settled: Mapping[str, Any] = field(default_factory=dict)
    """Keys of earlier versions with the only value they still take; a job's canonical bytes keep
    them."""

    def __post_init__(self) -> None:
        key = self.parameters.model_fields[self.tag]
        if not self.name:
            object.__setattr__(self, "name", get_args(key.annotation)[0])
        if not self.summary:
            object.__setattr__(self, "summary", str(key.description or ""))

    def made(self, **keys: Any) -> Any:
        """The block of this part with `keys`, its name filled in."""
        return self.parameters(**{self.tag: self.name, **keys})


GONE = {
    "features": {"patches": "feature map 'patches' is gone; use pictures, which learns more"},
    "methods": {name: f"method '{name}' is gone; use dp_sgd" for name in ("gep", "rgp")},
    "models": {"low_rank_head": "model 'low_rank_head' is gone; use mlp on the job's features"},
}
"""Names of parts of earlier versions, by family, with what to use instead."""

P = TypeVar("P", bound=Part)
B = TypeVar("B", bound=BlockPart)


class PartTable(Table[P], Generic[P]):
    """All parts of one family, by name: those of the package's files, then those of plug-ins."""

    def __init__(self, package: str, kind: type[P]) -> None:
        super().__init__(kind.what, {})
        self.package, self.kind = package, kind
        self.refused: dict[str, str] = {}
        """Names that plug-ins declare and that are not to be had here, with the reason."""
        self._lock = RLock()
        self._state: object = self  # never that of plug-ins

    @cached_property
    def built_in(self) -> dict[str, P]:
        folder = import_module(self.package)
        found: dict[str, P] = {}
        for file in pkgutil.iter_modules(folder.__path__):
            module = import_module(f"{self.package}.{file.name}")
            single = getattr(module, "PART", None)
            for part in getattr(module, "PARTS", () if single is None else (single,)):
                if part.name in found:
                    raise UsageError(f"two files declare {self.family} '{part.name}'")
                found[part.name] = part
        return dict(sorted(found.items()))

    def _found(self) -> dict[str, P]:
        now = state()
        if self._state != now:
            with self._lock:
                joined, refused = join(self.kind, self.built_in)
                gone = GONE.get(self.kind.family, {}).items()
                self.refused = {n: why for n, why in gone if n not in joined} | refused
                self._entries = {**self.built_in, **joined}
                self._state = now
        return self._entries

    def __getitem__(self, name: str) -> P:
        found = self._found()
        if name in found:
            return found[name]
        if name in self.refused:
            raise UsageError(self.refused[name])
        raise UsageError(f"unknown {self.family} '{name}'", fix=nearest(name, list(found)))

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
    """Annotates a field that takes the block of any part of a table: the union of their parameters
    by tag, made when the model is (re)built. A plug-in's name that cannot join is refused with its
    reason."""

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
