"""Read YAML text as plain values, with the line of every key.

Nodes are never constructed, so no tag can name code; anchors and too many or deep values are
refused before they cost memory.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

Path = tuple[str | int, ...]
TEXT_BYTES = 1 << 20
DEPTH = 32
NODES = 20_000
NUMBER_CHARACTERS = 64
_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = {_TAG + "str", _TAG + "timestamp", _TAG + "value", _TAG + "merge"}


@dataclass(frozen=True)
class Problem:
    """One fault: key path, line from 1, and fault, reason and fix as one text."""

    path: Path
    line: int
    text: str


@dataclass
class Tree:
    """Plain values with their lines; `value` is None for an empty text."""

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    written: dict[str, str] = field(
        default_factory=dict
    )  # first keys that the file names otherwise

    def as_written(self, problems: list[Problem]) -> list[Problem]:
        """Return the problems at the keys that the file has."""
        return [
            replace(one, path=(self.written.get(str(one.path[0]), one.path[0]), *one.path[1:]))
            if one.path
            else one
            for one in problems
        ]

    def line(self, path: Path) -> int:
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


class _Refused(yaml.MarkedYAMLError):
    pass


class _Loader(yaml.SafeLoader):
    depth = 0
    nodes = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self.nodes += 1
        problem = ""
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            problem = "anchors and aliases (& and *) are not read; write the value out"
        elif self.depth >= DEPTH or self.nodes > NODES:
            limit = f"{DEPTH} levels" if self.depth >= DEPTH else f"{NODES} values"
            problem = f"more than {limit}, which no configuration needs; shorten the file"
        if problem:
            raise _Refused(problem=problem, problem_mark=event.start_mark)
        self.depth += 1
        try:
            node: Node | None = super().compose_node(parent, index)
        finally:
            self.depth -= 1
        return node


def read_tree(raw: bytes) -> Tree:
    """Parse YAML text (UTF-8, at most 1 MiB). Never raises: faults are in `Tree.problems`."""
    tree = Tree()
    if len(raw) > TEXT_BYTES:
        return _broken(tree, 1, too_large(len(raw)))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return _broken(tree, line, "must be UTF-8 text, got other bytes; save it as UTF-8")
    try:
        node = _Loader(text).get_single_node()
    except _Refused as error:
        return _broken(tree, _line_of(error), str(error.problem))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return _broken(tree, line, "not YAML: a control character; remove it")
    except yaml.MarkedYAMLError as error:
        if "found character '\\t'" in str(error.problem):
            return _broken(tree, _line_of(error), "not YAML: a tab; indent with spaces")
        problem = " ".join(part for part in (error.context, error.problem) if part)
        return _broken(tree, _line_of(error), f"not YAML: {problem}; mend the syntax here")
    if node is None:
        return _broken(tree, 1, "the file is empty; start from one of the files in configs/")
    tree.lines[()] = _line(node)
    tree.value = _plain(node, (), tree)
    return tree


def too_large(size_bytes: int) -> str:
    return f"must be at most {TEXT_BYTES} bytes, got {size_bytes}; is this a configuration file?"


def _broken(tree: Tree, line: int, text: str) -> Tree:
    tree.problems.append(Problem((), line, text))
    return tree


def _line_of(error: yaml.MarkedYAMLError) -> int:
    mark = error.problem_mark or error.context_mark
    return mark.line + 1 if mark else 1


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _plain(node: Node, path: Path, tree: Tree) -> Any:
    if isinstance(node, MappingNode):
        return _mapping(node, path, tree)
    if isinstance(node, SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            tree.lines[(*path, index)] = _line(item)
            items.append(_plain(item, (*path, index), tree))
        return items
    if isinstance(node, ScalarNode):
        try:
            return _scalar(node)
        except ValueError as error:
            tree.problems.append(Problem(path, _line(node), str(error)))
    return None


def _mapping(node: MappingNode, path: Path, tree: Tree) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, ScalarNode):
            what = "a key must be plain text, got a list or block; is a quote or a space missing?"
            tree.problems.append(Problem(path, _line(key), what))
            continue
        name = str(key.value).encode("utf-8", "replace").decode()
        here = (*path, name)
        if name in values:
            first = tree.lines[here]
            text = f"given twice, first in line {first}, so one would be lost; remove one"
            tree.problems.append(Problem(here, _line(key), text))
            continue
        tree.lines[here] = _line(key)
        values[name] = _plain(value, here, tree)
    return values


def _scalar(node: ScalarNode) -> Any:
    tag, text = node.tag, str(node.value)
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("holds half a character (a surrogate); write the whole one")
    if tag in _TEXT_TAGS:
        return text
    if tag == _TAG + "null":
        return None
    if tag == _TAG + "bool":
        switches: dict[str, bool] = yaml.SafeLoader.bool_values
        if text.lower() not in switches:
            raise ValueError("must be true or false; write one of them")
        return switches[text.lower()]
    if tag in (_TAG + "int", _TAG + "float"):
        return _number(text)
    raise ValueError("tags (!) are not read; write a plain value")


def _number(text: str) -> int | float:
    """Parse a number; refuse 1:30 and 010, which YAML 1.1 reads as 90 and 8."""
    plain = text.replace("_", "")
    if len(plain) > NUMBER_CHARACTERS:
        raise ValueError(f"a number of more than {NUMBER_CHARACTERS} characters; shorten it")
    if ":" in plain:
        raise ValueError(f"'{text}' is a base-60 number in YAML; write a plain one, or quote text")
    if re.fullmatch(r"[-+]?0[0-9]+", plain):
        raise ValueError(f"'{text}' is an octal number in YAML; drop the leading zero")
    try:
        if re.fullmatch(r"[-+]?(0x[0-9a-fA-F]+|0b[01]+|[0-9]+)", plain):
            return int(plain, 0)
        value = float(plain)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"'{text}' is no finite number; write a plain one, or quote text")
    return value


def path_text(path: Path) -> str:
    """Return `features[0].shift`, or `(file)` for the whole file; never a space."""
    steps = (step if isinstance(step, int) else re.sub(r"[^\w-]", "?", step)[:64] for step in path)
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return text.lstrip(".") or "(file)"
