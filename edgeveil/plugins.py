"""Plug-ins: parts that installed distributions declare in the entry-point group `edgeveil.parts`.

An entry point `family.name` (a folder of `edgeveil/parts`) references the part:
`"aggregation.norm_mean" = "my_rules.norm_mean:PART"`. Cloud, tools and simulations load all; a
device's process first calls `admit` with its owners' `policy.allowed_plugins`, and imports only
files with those digests. Errors and `edgeveil methods` name a plug-in that cannot be loaded.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from edgeveil.errors import OF_OTHERS_CODE, UsageError

if TYPE_CHECKING:
    from importlib.metadata import PathDistribution

GROUP = "edgeveil.parts"
_OF_METADATA = ("METADATA", "entry_points.txt")  # other files differ between installers


class PluginRefusedError(ValueError):
    """A declared part that must not, or cannot, be used; the text has reason and fix."""


class PluginAllowance(Protocol):
    @property
    def distribution(self) -> str: ...
    @property
    def sha256(self) -> str: ...


@dataclass(frozen=True)
class Plugin:
    """One part that a distribution declares. `target` is `module:attribute`."""

    family: str
    name: str
    target: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.family} '{self.name}' of plug-in {self.distribution} {self.version}"


_admitted: dict[str, frozenset[str]] | None = None  # digests by distribution; None: all of them
_joined: dict[tuple[str, str], Plugin] = {}
_complaints: dict[Plugin, str] = {}
_watchers: list[Callable[[], None]] = []


class Allowance(NamedTuple):
    """A suggested entry for `policy.allowed_plugins`."""

    distribution: str
    sha256: str


def admit(allowed: Iterable[PluginAllowance]) -> None:
    """Allow only these plug-ins in this process; repeated calls add to them."""
    _change(_with(allowed))


@contextmanager
def only(allowed: Iterable[PluginAllowance]) -> Iterator[None]:
    """Allow inside only these plug-ins and those admitted before."""
    before = _admitted
    _change(_with(allowed))
    try:
        yield
    finally:
        _change(before)


def _with(allowed: Iterable[PluginAllowance]) -> dict[str, frozenset[str]]:
    found = dict(_admitted or {})
    for one in allowed:
        name = _normal(one.distribution)
        found[name] = found.get(name, frozenset()) | {one.sha256}
    return found


def watch(changed: Callable[[], None]) -> None:
    """Call `changed` when the set of allowed plug-ins changes, to rebuild tables."""
    _watchers.append(changed)


def _change(admitted: dict[str, frozenset[str]] | None) -> None:
    global _admitted
    before, _admitted = state(), admitted
    if before != state() and installed():
        for changed in _watchers:
            changed()


def state() -> object:
    """Return a value that is equal as long as the same plug-ins are allowed."""
    return None if _admitted is None else tuple(sorted(_admitted.items()))


def installed() -> tuple[Plugin, ...]:
    """Return all parts that installed distributions declare, without importing them."""
    return _installed(tuple(sys.path))


def plugin_of(family: str, name: str) -> Plugin | None:
    """Return the plug-in of a loaded part; None for a built-in part."""
    return _joined.get((family, name))


def complaints(name: str | None = None) -> list[str]:
    """Return the reasons why plug-ins, or only that named `name`, could not be loaded."""
    folder = Path(__file__).parent / "parts"
    families = sorted(path.parent.name for path in folder.glob("*/__init__.py"))
    fix = f"name the entry point family.name, the family one of {', '.join(families)}"
    unknown = {
        one: f"{one}: no such family; {fix}" for one in installed() if one.family not in families
    }
    return [why for one, why in {**_complaints, **unknown}.items() if name in (None, one.name)]


def refusal(parts: Iterable[tuple[str, str]], allowed: Iterable[PluginAllowance]) -> str:
    """Return why an owner does not allow a job with these (family, name), or ""."""
    digests = {(_normal(one.distribution), one.sha256) for one in allowed}
    for family, name in parts:
        plugin = _joined.get((family, name))
        if plugin is None:
            continue
        try:
            here = digest(plugin.distribution)
        except UsageError as error:
            return f"{plugin} {error.what}"
        if (_normal(plugin.distribution), here) not in digests:
            return f"{plugin}, with the digest {here}, may not run here"
    return ""


def allowances(parts: Iterable[tuple[str, str]]) -> list[Allowance]:
    """Return policy entries that would allow the plug-ins of these (family, name)."""
    found: dict[str, Allowance] = {}
    for family, name in parts:
        for plugin in installed():
            if (plugin.family, plugin.name) == (family, name):
                with suppress(UsageError):
                    here = digest(plugin.distribution)
                    found[plugin.distribution] = Allowance(plugin.distribution, here)
    return list(found.values())


def join(kind: type[Any], built_in: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the parts of a family from plug-ins, and the reasons by name for refused ones."""
    mine = [one for one in installed() if one.family == kind.family]
    joined: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for one in mine:
        others = [other for other in mine if other.name == one.name and other is not one]
        try:
            if one.name in built_in:
                raise PluginRefusedError(f"{one} has a name of EdgeVeil's own; rename it")
            if others:
                raise PluginRefusedError(f"{one} and {others[0]} have one name; uninstall one")
            _check_admitted(one)
            joined[one.name] = _part(one, kind)
        except PluginRefusedError as error:
            _complaints[one] = str(error)
            _joined.pop((one.family, one.name), None)
            if one.name not in built_in:
                refused[one.name] = str(error)
        else:
            _complaints.pop(one, None)
            _joined[one.family, one.name] = one
    return joined, refused


def _check_admitted(one: Plugin) -> None:
    """Raise PluginRefusedError in a device's process unless an owner allows the plug-in."""
    if _admitted is None:
        return
    found = _admitted.get(_normal(one.distribution))
    if found is None:
        fix = f"if you trust it, add the output of `edgeveil methods digest {one.name}`"
        raise PluginRefusedError(f"{one} is not allowed by policy.allowed_plugins; {fix}")
    try:
        here = digest(one.distribution)
    except UsageError as error:
        raise PluginRefusedError(f"{one} {error.what}; {error.fix}") from error
    if here not in found:
        text = f"{one} has other files here than policy.allowed_plugins allows, their digest is"
        raise PluginRefusedError(f"{text} {here}; if you trust them, correct sha256")


def _part(one: Plugin, kind: type[Any]) -> Any:
    module, _, attribute = one.target.partition(":")
    try:
        found: Any = import_module(module)
        for step in (attribute or "PART").split("."):
            found = getattr(found, step)
    except OF_OTHERS_CODE as error:  # a plug-in may raise anything
        text = f"{one} cannot be imported from {one.target}, {type(error).__name__}: {error}"
        raise PluginRefusedError(f"{text}; correct or uninstall it") from error
    if not isinstance(found, kind):
        raise PluginRefusedError(f"{one}: {one.target} is no {kind.__name__}; declare one")
    if found.name != one.name:
        fix = f"name the entry point {one.family}.{found.name}"
        raise PluginRefusedError(f"{one}: the part calls itself '{found.name}'; {fix}")
    block: Any = getattr(kind, "block", None)
    parameters: Any = getattr(found, "parameters", None)
    if block is None:
        return found
    if not (isinstance(parameters, type) and issubclass(parameters, block)):
        raise PluginRefusedError(f"{one}: its parameters are no {block.__name__}; derive them")
    try:  # in a union with others, one that cannot be built takes all down with it
        from pydantic import TypeAdapter

        TypeAdapter(parameters).json_schema()
    except Exception as error:
        text = f"{one}: its parameters cannot be read, {type(error).__name__}: {error}"
        raise PluginRefusedError(f"{text}; correct their types") from error
    return found


# Digests.


@lru_cache(maxsize=64)
def digest(distribution: str) -> str:
    """Return the SHA-256 (hex) of a distribution's installed files.

    Hashes `sha256sum` lines by path: all files in RECORD and in its packages' folders, of the
    metadata METADATA and entry_points.txt, no scripts, no bytecode that Python checks against its
    source. Raises UsageError unless installed from a wheel."""
    here = _distributions(tuple(sys.path))
    found = next((one for one in here if _name(one) == _normal(distribution)), None)
    if found is None:
        raise UsageError(f"no plug-in '{distribution}' is installed", fix="install it with pip")
    root = Path(str(found.locate_file("")))
    files = _files(found, root)
    tops = {one.target.partition(":")[0].partition(".")[0] for one in _declared(found)}
    for top in sorted(tops):
        spec = find_spec(top)
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        inside = [Path(place) for place in places if place is not None]
        if not inside or not all(place.is_relative_to(root) for place in inside):
            fix = "install it from a wheel, not in editable form"
            raise UsageError(f"is not imported from its installed files in {root}", fix=fix)
    return _digest_of(root, files)


@lru_cache(maxsize=64)
def code_digest(function: str) -> str:
    """Return `digest` of the top package's files of `module:function`, without importing it."""
    top = function.partition(":")[0].partition(".")[0]
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        spec = None
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    if spec is None or len(folders) > 1 or not (folders or (spec.has_location and spec.origin)):
        what = f"no module or package '{top}' with files of its own is installed"
        raise UsageError(what, fix="install it")
    base = folders[0] if folders else Path(str(spec.origin))
    below = sorted(base.rglob("*")) if folders else [base]
    if any(path.is_symlink() for path in (base, *below)):
        raise UsageError(f"'{top}' holds a link", fix="install the files themselves")
    root = base.parent
    names = [path.relative_to(root).as_posix() for path in below if path.is_file()]
    return _digest_of(root, [name for name in names if _counts(root, name)])


def _digest_of(root: Path, files: Iterable[str]) -> str:
    each = ((hashlib.sha256((root / path).read_bytes()).hexdigest(), path) for path in files)
    return hashlib.sha256("".join(f"{one}  {path}\n" for one, path in each).encode()).hexdigest()


def _files(found: PathDistribution, root: Path) -> list[str]:
    listed = {str(path) for path in found.files or () if not str(path).startswith(("..", "/"))}
    folders = {path.split("/")[0] for path in listed if "/" in path}
    for folder in folders:
        if not folder.endswith((".dist-info", ".data")):
            below = [root / folder, *(root / folder).rglob("*")]
            link = next((path for path in below if path.is_symlink()), None)
            if link is not None:  # its target is not hashed and may change
                where = link.relative_to(root)
                raise UsageError(f"holds a link, {where}", fix="install it from a wheel")
            listed |= {path.relative_to(root).as_posix() for path in below if path.is_file()}
    if not listed:
        raise UsageError("has no list of its files", fix="install it from a wheel with pip")
    return sorted(path for path in listed if _counts(root, path))


def _counts(root: Path, path: str) -> bool:
    folder, _, file = path.rpartition("/")
    if folder.endswith(".dist-info"):
        return file in _OF_METADATA
    if not (root / path).is_file():
        raise UsageError(f"lacks its file {path}", fix="install it again")
    if folder.endswith("__pycache__") and path.endswith(".pyc"):
        with (root / path).open("rb") as stream:  # flags 0: Python checks time and size of source
            return stream.read(8)[4:] != bytes(4)
    return True


# What is installed.


@lru_cache(maxsize=4)
def _installed(paths: tuple[str, ...]) -> tuple[Plugin, ...]:
    found = [one for distribution in _distributions(paths) for one in _declared(distribution)]
    return tuple(sorted(found, key=lambda one: (one.family, one.name, one.distribution)))


def _declared(distribution: PathDistribution) -> list[Plugin]:
    name, version = distribution.metadata["Name"], distribution.version
    return [
        Plugin(*point.name.partition(".")[::2], point.value, name, version)
        for point in distribution.entry_points.select(group=GROUP)
    ]


@lru_cache(maxsize=4)
def _distributions(paths: tuple[str, ...]) -> tuple[PathDistribution, ...]:
    """Return the distributions that declare parts, the first of each name on the path."""
    # Read directly: importing `importlib.metadata` takes as long as all of `--help`.
    marked: list[Path] = []
    for folder in dict.fromkeys(paths):
        for file in sorted(Path(folder or ".").glob("*.dist-info/entry_points.txt")):
            try:
                if f"[{GROUP}]" in file.read_text("utf-8", "replace"):
                    marked.append(file.parent)
            except OSError:
                continue
    if not marked:
        return ()
    from importlib.metadata import PathDistribution

    found: dict[str, PathDistribution] = {}
    for place in marked:
        one = PathDistribution(place)
        found.setdefault(_name(one), one)
    return tuple(found.values())


def _name(distribution: PathDistribution) -> str:
    return _normal(str(distribution.metadata["Name"]))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
