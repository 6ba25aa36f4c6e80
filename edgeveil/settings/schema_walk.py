"""Reading a JSON Schema: where a key leads, and what its value must be, in words."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

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


class SchemaWalk:
    """One exported schema with its `$defs`; every node handed out has its `$ref` followed."""

    def __init__(self, schema: Schema) -> None:
        self._definitions: Schema = schema.get("$defs", {})
        self.root = self.follow(schema)

    def follow(self, node: Schema) -> Schema:
        """The node a `$ref` points at, with what stands beside the `$ref` laid over it."""
        while "$ref" in node:
            target = self._definitions[node["$ref"].rsplit("/", 1)[-1]]
            node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
        return node

    def variants(self, node: Schema) -> list[Schema]:
        """The alternatives of a node, `null` left out; the node itself where it has none."""
        options = node.get("anyOf") or node.get("oneOf")
        if not options:
            return [node]
        found = [variant for option in options for variant in self.variants(self.follow(option))]
        return [variant for variant in found if variant.get("type") != "null"]

    def property(self, node: Schema, key: str) -> Schema | None:
        """The schema of a key in a block, None where no alternative has it."""
        for variant in self.variants(node):
            if key in variant.get("properties", {}):
                return self.follow(variant["properties"][key])
        return None

    def item(self, node: Schema) -> Schema:
        """The schema of a list's items, empty where the node is no list."""
        for variant in self.variants(node):
            if "items" in variant:
                return self.follow(variant["items"])
        return {}

    def tagged(self, node: Schema, tag: str) -> Schema | None:
        """The alternative that a discriminator's value names."""
        mapping = self._mapping(node)
        return self.follow({"$ref": mapping[tag]}) if tag in mapping else None

    def tags(self, node: Schema) -> list[str]:
        """The names that a discriminator may have, empty for a node without one."""
        return list(self._mapping(node))

    def owners(self, node: Schema, key: str) -> list[str]:
        """The names whose blocks have a key, of a node with a discriminator."""
        tags = self.tags(node)
        return [tag for tag in tags if key in self.keys(self.tagged(node, tag) or {})]

    def chosen(self, node: Schema, value: Any) -> Schema:
        """The alternative that `value` names; the node itself where it has or names none."""
        given = value.get(self._discriminator(node).get("propertyName")) if value else None
        return (self.tagged(node, given) if isinstance(given, str) else None) or node

    def _mapping(self, node: Schema) -> dict[str, str]:
        found: dict[str, str] = self._discriminator(node).get("mapping", {})
        return found

    def _discriminator(self, node: Schema) -> dict[str, Any]:
        options = (node, *map(self.follow, node.get("anyOf", ())))  # a block may be null
        return next((one["discriminator"] for one in options if "discriminator" in one), {})

    def keys(self, node: Schema) -> list[str]:
        """The keys a block may have, over all its alternatives."""
        names = (name for variant in self.variants(node) for name in variant.get("properties", {}))
        return list(dict.fromkeys(names))

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Every dotted key path of the schema, lists left out."""
        return tuple(self._paths(self.root, ""))

    def _paths(self, node: Schema, prefix: str) -> Iterator[str]:
        for key in self.keys(node):
            yield prefix + key
            child = self.property(node, key)
            if child is not None:
                yield from self._paths(child, f"{prefix}{key}.")


def bounds(node: Schema) -> str:
    """`in (0, 1)`, `at least 1`, … ; empty where a number is unbounded."""
    low, high = node.get("minimum"), node.get("maximum")
    above, below = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    if (low is not None or above is not None) and (high is not None or below is not None):
        left = f"[{number(low)}" if low is not None else f"({number(above)}"
        right = f"{number(high)}]" if high is not None else f"{number(below)})"
        return f"in {left}, {right}"
    if low is not None or above is not None:
        return f"at least {number(low)}" if low is not None else f"more than {number(above)}"
    if high is not None or below is not None:
        return f"at most {number(high)}" if high is not None else f"less than {number(below)}"
    return ""


def describe(walk: SchemaWalk, node: Schema) -> str:
    """What a value must be: `a whole number at least 1 or 'all'`."""
    return " or ".join(dict.fromkeys(_one(walk, variant) for variant in walk.variants(node)))


def _one(walk: SchemaWalk, node: Schema) -> str:
    choices = node.get("enum", [node["const"]] if "const" in node else [])
    if choices:
        return " or ".join(shown(choice) for choice in choices)
    if node.get("type") == "array":
        least, most = node.get("minItems"), node.get("maxItems")
        size = f" of {least or 0} to {most}" if most else f" of at least {least}" if least else ""
        return f"a list{size} ({describe(walk, walk.item(node))})"
    words = _KINDS.get(str(node.get("type")), "a value of another form")
    if node.get("type") in ("integer", "number"):
        return f"{words} {bounds(node)}".rstrip()
    if node.get("pattern") == SHA256_HEX:
        return "64 hex digits, as `edgeveil backbone show FILE` prints"
    if "pattern" in node:
        return f"{words} of the form {node['pattern'].strip('^$')}"
    if "maxLength" in node:
        return f"{words} of {node.get('minLength', 0)} to {node['maxLength']} characters"
    return words


def number(value: Any) -> str:
    """A number as YAML 1.1 reads it back: `1.0e-5`, never `1e-05`."""
    text = repr(value)
    if "e" not in text:
        return text.removesuffix(".0")
    mantissa, exponent = text.split("e")
    sign = "-" if exponent.startswith("-") else "+"
    digits = exponent.lstrip("+-").lstrip("0")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{sign}{digits}"


def shown(value: Any) -> str:
    """A value in a message, short: text quoted, blocks and lists by their kind alone."""
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
