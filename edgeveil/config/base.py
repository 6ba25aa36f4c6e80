"""Base of every YAML block: strict types, no unknown keys, frozen."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from edgeveil.errors import ConfigError, ConfigProblem, DataError
from edgeveil.registry import known_names, nearest

MIX = "impossible_mix"
DEPENDS_ON_ANOTHER = "depends_on_another_key"  # which is reported itself


class Keys(BaseModel):
    """Keys described by the texts below them, which are read only when they are shown."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        found = handler(schema)
        shown = handler.resolve_ref_schema(found).get("properties", {})
        for name, text in key_texts(cls).items():
            field = cls.model_fields.get(name)
            if field is not None and (key := field.alias or name) in shown:
                shown[key].setdefault("description", text)
        return found


@cache
def key_texts(model: type) -> dict[str, str]:
    """Return the texts below the fields of a model's class and its bases; none without source."""
    texts: dict[str, str] = {}
    for one in (c for c in reversed(model.__mro__) if issubclass(c, Keys)):
        with suppress(OSError, TypeError, SyntaxError):  # of a class made at a prompt or by `exec`
            [tree] = ast.parse(dedent(inspect.getsource(one))).body
            for key, text in pairwise(getattr(tree, "body", ())):
                match key, text:
                    case ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str() as words)):
                        texts[ast.unparse(key.target)] = inspect.cleandoc(words)
    return texts


class Block(Keys):
    """A block of keys. Text is never accepted as a number, nor a number as a switch."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, validate_default=True)

    def _mixes(self) -> Iterable[Mix]:
        return ()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        refuse(self._mixes())
        return self


@dataclass(frozen=True)
class Mix:
    """Values that are impossible together; the first of `paths` in the file is reported."""

    paths: tuple[str, ...]
    text: str


class ImpossibleMixError(ConfigError):
    """All impossible combinations of a file or job, as `mixes`."""

    def __init__(self, mixes: Iterable[Mix]) -> None:
        self.mixes = tuple(mixes)
        super().__init__([f"{mix.paths[0]}: {mix.text}" for mix in self.mixes])

    @property
    def places(self) -> list[ConfigProblem]:
        """The first key of each mix; a job made in Python has no line numbers."""
        return [ConfigProblem("", 0, mix.paths[0], mix.text) for mix in self.mixes]


def refuse(mixes: Iterable[Mix]) -> None:
    """Raise one validation error that carries all `mixes`."""
    found = list(mixes)
    if found:
        text = " | ".join(mix.text for mix in found)
        raise PydanticCustomError(MIX, "{text}", {"text": text, "mixes": found})


def _site_path(value: object, info: ValidationInfo) -> Path:
    if not isinstance(value, (str, Path)):
        raise ValueError("must be a path, got something else; write it as text")
    if value == "":
        raise ValueError("must be a path, got empty text; leave the key out instead")
    folder = (info.context or {}).get("folder")
    if folder is None:
        return Path(value)
    try:
        return (Path(folder) / Path(value).expanduser()).resolve()
    except (OSError, RuntimeError) as error:
        raise ValueError(f"not a usable path ({error}); write an absolute one") from None


SitePath = Annotated[
    Path, PlainValidator(_site_path), WithJsonSchema({"type": "string", "format": "path"})
]
"""A path, relative to the folder of its configuration file."""


def named_in(what: str, family: str, usual: str = "") -> Callable[[str], str]:
    """Return a validator for names of one family; `usual` is accepted without loading it."""

    def check(name: str) -> str:
        if name != usual and name not in (known := list(known_names(family))):
            raise ValueError(f"unknown {what} '{name[:64]}', {nearest(name[:64], known)}")
        return name

    return check


PortNumber = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86400)]


def as_tuples(value: Any) -> Any:
    """Return `value` with lists turned into tuples, which a before-validator receives from JSON."""
    if isinstance(value, dict):
        return {key: as_tuples(inner) for key, inner in value.items()}
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def filled_from_file(
    given: Any, info: ValidationInfo, facts: Callable[[dict[str, Any], Path], dict[str, Any]]
) -> Any:
    """Return a block that names a `file` with the keys of `facts`(block, job file's folder) added.

    Opens a file only while a job file is read. Raises ValueError in a sent job, or for a bad file.
    """
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
