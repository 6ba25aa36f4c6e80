"""Explain a failed validation by the model's JSON Schema: per problem line, fault, reason, fix."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from edgeveil.config.base import DEPENDS_ON_ANOTHER, MIX, ImpossibleMixError, Mix
from edgeveil.config.yaml_tree import Path, Problem, Tree
from edgeveil.registry import nearest

Schema = dict[str, Any]
SHA256_HEX = "^[0-9a-f]{64}$"
_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "object": "a block of keys",
    "null": "null",
}
_RANGE = {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}
_SCIENTIFIC = re.compile(r"[-+]?[0-9][0-9_]*\.?[0-9]*[eE][-+]?[0-9]+")


class Explainer:
    """Explains the errors of one file against its schema; `prefix` is the site's key, if any."""

    def __init__(self, tree: Tree, walk: SchemaWalk, prefix: Path = ()) -> None:
        self.tree, self.walk, self.prefix = tree, walk, prefix
        self.value: Any = tree.value
        for step in prefix:
            self.value = self.value[step]

    def problems(self, error: ValidationError | ImpossibleMixError) -> list[Problem]:
        """Return one problem per key, however many alternatives of a value failed."""
        found: dict[Path, Problem] = {}
        for detail in faults(error)[0]:
            path, schema = self.place(detail)
            found.setdefault(path, self._problem(path, self._text(detail, path, schema)))
        # A list with failed items also counts as too short: report the items alone.
        lists = {path[:at] for path in found for at, step in enumerate(path) if type(step) is int}
        return [problem for path, problem in found.items() if path not in lists]

    def mixes(
        self, error: ValidationError | ImpossibleMixError, faulty: Iterable[Path] = ()
    ) -> list[Problem]:
        """Return the impossible mixes, except those that involve a faulty key."""
        skip, found = len(self.prefix), []
        spoiled = {*faulty, *(problem.path[skip:] for problem in self.tree.problems)} - {()}
        for mix in faults(error)[1]:
            paths = [tuple(int(s) if s.isdecimal() else s for s in p.split(".")) for p in mix.paths]
            pairs = [(path, bad, min(len(path), len(bad))) for path in paths for bad in spoiled]
            if not any(path[:shared] == bad[:shared] for path, bad, shared in pairs):
                given = [path for path in paths if self.prefix + path in self.tree.lines]
                found.append(self._problem((given or paths)[0], mix.text))
        return found

    def place(self, detail: ErrorDetails) -> tuple[Path, Schema]:
        """Return path and schema of an error's key: its location without alternatives' names."""
        path: Path = ()
        schema, value = self.walk.root, self.value
        for step in detail["loc"]:
            if isinstance(step, int):
                path, schema = (*path, step), self.walk.item(schema)
                value = value[step] if isinstance(value, list) and step < len(value) else None
                continue
            tagged = self.walk.tagged(schema, step)
            if tagged is not None:
                schema = tagged
                continue
            child = self.walk.property(schema, step)
            if child is None and not (isinstance(value, dict) and step in value):
                continue
            path, schema = (*path, step), child or {}
            value = value.get(step) if isinstance(value, dict) else None
        if detail["type"].startswith("union_tag"):
            tag = str(detail.get("ctx", {}).get("discriminator", "")).strip("'")
            return (*path, tag), schema
        return path, schema

    def _problem(self, path: Path, text: str) -> Problem:
        full = self.prefix + path
        return Problem(full, self.tree.line(full), text)

    def _text(self, detail: ErrorDetails, path: Path, schema: Schema) -> str:
        kind, given = detail["type"], detail.get("input")
        if kind == "extra_forbidden":
            return self._unknown(path)
        if kind == "missing":
            return f"is missing and has no default{_example(schema)}"
        if kind == "union_tag_not_found":
            tags = " or ".join(self.walk.tags(schema))
            return f"is missing, it decides which keys belong here; set it to {tags}"
        if kind == "union_tag_invalid":
            tag = str(detail["ctx"]["tag"])[:64]
            return f"unknown name '{tag}', {nearest(tag, self.walk.tags(schema))}"
        if kind == "value_error":
            return str(detail["ctx"]["error"])
        if kind in _RANGE and len(self.walk.variants(schema)) == 1 and bounds(schema):
            return f"must be {bounds(schema)}, got {shown(given)}{_example(schema)}"
        if not schema:
            return f"{detail['msg']}, got {shown(given)}"
        return self._wrong(schema, given)

    def _wrong(self, schema: Schema, given: Any) -> str:
        wanted = describe(self.walk, schema)
        if isinstance(given, str):
            if "number" in wanted and _SCIENTIFIC.fullmatch(given):
                plain = number(float(given.replace("_", "")))
                return f"must be {wanted}, got text, for so YAML 1.1 reads {given}; write {plain}"
            options = [c for v in self.walk.variants(schema) for c in v.get("enum", [])]
            choices = [choice for choice in options if isinstance(choice, str)]
            if choices:
                return f"must be {wanted}, got {shown(given)}; {nearest(given[:64], choices)}"
        if isinstance(given, bool) and "text" in wanted:
            return f"must be {wanted}, got the switch {shown(given)}; put it in quotes"
        return f"must be {wanted}, got {shown(given)}{_example(schema)}"

    def _unknown(self, path: Path) -> str:
        name = str(path[-1])[:64]
        schema, value = self.walk.root, self.value
        for step in path[:-1]:
            if isinstance(step, int):
                schema = self.walk.item(schema)
            else:
                schema = self.walk.property(schema, step) or {}
            value = value[step]
        return f"unknown key, {nearest(name, self.walk.keys(self.walk.chosen(schema, value)))}"


def faults(error: ValidationError | ImpossibleMixError) -> tuple[list[ErrorDetails], list[Mix]]:
    if isinstance(error, ImpossibleMixError):
        return [], list(error.mixes)
    details = error.errors(include_url=False)
    mixes = [mix for detail in details for mix in detail.get("ctx", {}).get("mixes", [])]
    return [one for one in details if one["type"] not in (MIX, DEPENDS_ON_ANOTHER)], mixes


def _example(schema: Schema) -> str:
    for value in [*schema.get("examples", []), schema.get("default")]:
        if value not in (None, "", [], {}):
            plain = value if isinstance(value, str) else shown(value)
            text = json.dumps(value) if isinstance(value, (list, dict)) else plain
            return f"; set for example {text}"
    if schema.get("required"):
        return f"; give it the keys it needs: {', '.join(schema['required'])}"
    purpose = str(schema.get("description", "")).splitlines()
    return f"; give it a value ({purpose[0].rstrip('.')})" if purpose else "; give it another value"


class SchemaWalk:
    """One exported schema with its `$defs`; every returned node has its `$ref` resolved."""

    def __init__(self, schema: Schema) -> None:
        self._definitions: Schema = schema.get("$defs", {})
        self.root = self.follow(schema)

    def follow(self, node: Schema) -> Schema:
        """Return a `$ref`'s target, overlaid with the keys beside the `$ref`."""
        while "$ref" in node:
            target = self._definitions[node["$ref"].rsplit("/", 1)[-1]]
            node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
        return node

    def variants(self, node: Schema) -> list[Schema]:
        """Return the alternatives of a node without `null`, or the node itself."""
        options = node.get("anyOf") or node.get("oneOf")
        if not options:
            return [node]
        found = [variant for option in options for variant in self.variants(self.follow(option))]
        return [variant for variant in found if variant.get("type") != "null"]

    def property(self, node: Schema, key: str) -> Schema | None:
        """Return the schema of a key in a block; None if no alternative has it."""
        for variant in self.variants(node):
            if key in variant.get("properties", {}):
                return self.follow(variant["properties"][key])
        return None

    def item(self, node: Schema) -> Schema:
        """Return the schema of a list's items; empty if the node is no list."""
        for variant in self.variants(node):
            if "items" in variant:
                return self.follow(variant["items"])
            if "prefixItems" in variant:  # a tuple, here always of one type
                return self.follow(variant["prefixItems"][0])
        return {}

    def tagged(self, node: Schema, tag: str) -> Schema | None:
        mapping = self._mapping(node)
        return self.follow({"$ref": mapping[tag]}) if tag in mapping else None

    def tags(self, node: Schema) -> list[str]:
        return list(self._mapping(node))

    def chosen(self, node: Schema, value: Any) -> Schema:
        given = value.get(self._discriminator(node).get("propertyName")) if value else None
        return (self.tagged(node, given) if isinstance(given, str) else None) or node

    def _mapping(self, node: Schema) -> dict[str, str]:
        found: dict[str, str] = self._discriminator(node).get("mapping", {})
        return found

    def _discriminator(self, node: Schema) -> dict[str, Any]:
        options = (node, *map(self.follow, node.get("anyOf", ())))  # a block may be null
        return next((one["discriminator"] for one in options if "discriminator" in one), {})

    def keys(self, node: Schema) -> list[str]:
        names = (name for variant in self.variants(node) for name in variant.get("properties", {}))
        return list(dict.fromkeys(names))


def bounds(node: Schema) -> str:
    """Return `in (0, 1)`, `at least 1`, … ; empty if unbounded."""
    low, high = node.get("minimum"), node.get("maximum")
    above, below = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    least, most = above if low is None else low, below if high is None else high
    if least is not None and most is not None:
        left, right = "(" if low is None else "[", ")" if high is None else "]"
        return f"in {left}{number(least)}, {number(most)}{right}"
    if least is not None:
        return f"{'more than' if low is None else 'at least'} {number(least)}"
    return "" if most is None else f"{'less than' if high is None else 'at most'} {number(most)}"


def describe(walk: SchemaWalk, node: Schema) -> str:
    """Return a description of valid values: `a whole number at least 1 or 'all'`."""
    return " or ".join(dict.fromkeys(_one(walk, variant) for variant in walk.variants(node)))


def _one(walk: SchemaWalk, node: Schema) -> str:
    choices = node.get("enum", [node["const"]] if "const" in node else [])
    if choices:
        return " or ".join(shown(choice) for choice in choices)
    if node.get("type") == "array":
        least, most = node.get("minItems"), node.get("maxItems")
        size = f" of {least or 0} to {most}" if most else f" of at least {least}" if least else ""
        if most and least == most:
            size = f" of {most}"
        return f"a list{size} ({describe(walk, walk.item(node))})"
    kind = _KINDS.get(str(node.get("type")), "a value of another form")
    if node.get("type") in ("integer", "number"):
        steps = f", a multiple of {node['multipleOf']}" if "multipleOf" in node else ""
        return f"{kind} {bounds(node)}".rstrip() + steps
    if node.get("pattern") == SHA256_HEX:
        return "64 hex digits, as `edgeveil check FILE` prints"
    if "pattern" in node:
        return f"{kind} of the form {node['pattern'].strip('^$')}"
    if "maxLength" in node:
        return f"{kind} of {node.get('minLength', 0)} to {node['maxLength']} characters"
    return kind


def number(value: Any) -> str:
    """Format a number for YAML 1.1: `1.0e-5`, never `1e-05`."""
    text = repr(value)
    if "e" not in text:
        return text.removesuffix(".0")
    mantissa, exponent = text.split("e")
    sign = "-" if exponent.startswith("-") else "+"
    digits = exponent.lstrip("+-").lstrip("0")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{sign}{digits}"


def shown(value: Any) -> str:
    """Return a short form of a value for messages: text quoted, blocks and lists by kind."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, str):
        return f"'{value[:60]}…'" if len(value) > 60 else f"'{value}'"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    return "a block of keys"
