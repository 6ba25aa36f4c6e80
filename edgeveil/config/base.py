"""What every block of a YAML file shares: strict types, no unknown keys, no later change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from edgeveil.errors import ConfigError, ConfigProblem
from edgeveil.registry import known_names, nearest

MIX = "impossible_mix"
RESTS_ON_ANOTHER = "rests_on_another_key"  # which is faulty itself, and told


class Block(BaseModel):
    """A block of keys. Text is never taken for a number, nor a number for a switch."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        use_attribute_docstrings=True,
    )

    def _mixes(self) -> Iterable[Mix]:
        return ()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        refuse(self._mixes())
        return self


@dataclass(frozen=True)
class Mix:
    """Values that are fine alone and impossible together. `paths` are all keys involved, dotted;
    the problem is shown at the first one the file has."""

    paths: tuple[str, ...]
    text: str


class ImpossibleMixError(ConfigError):
    """Values that are fine alone and impossible together: `mixes`, every one of them."""

    def __init__(self, mixes: Iterable[Mix]) -> None:
        self.mixes = tuple(mixes)
        super().__init__([f"{mix.paths[0]}: {mix.text}" for mix in self.mixes])

    @property
    def places(self) -> list[ConfigProblem]:
        """The first key of each; a job that was made in Python has no lines."""
        return [ConfigProblem("", 0, mix.paths[0], mix.text) for mix in self.mixes]


def refuse(mixes: Iterable[Mix]) -> None:
    """Raise one validation error that carries every mix, so that all are reported at once."""
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
"""A path; a relative one counts from the folder of the file that holds it."""


def named_in(what: str, family: str, usual: str = "") -> Callable[[str], str]:
    """A validator that takes only the names of one family; who names the `usual` one loads none."""

    def check(name: str) -> str:
        if name != usual and name not in (known := list(known_names(family))):
            raise ValueError(f"unknown {what} '{name[:64]}', {nearest(name[:64], known)}")
        return name

    return check


PortNumber = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
