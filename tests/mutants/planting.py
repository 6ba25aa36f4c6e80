"""A mutant: one expression of one function replaced by another, in a copy of the checkout."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

ROOTS = (".", "edge_client", "cloud_server", "proxy", "tools")  # import roots, as for pytest


class PlantingError(Exception):
    """A mutant that does not fit the code: rewrite its entry in `flaws.py`."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One small flaw, and the test that must fail with it.

    `where` is `module:qualname` of a function, class or assignment; `find` is an expression in it
    as source text, compared as a syntax tree, and `put` replaces it; `nth` selects one of several
    (from 1, in source order). `decides` names the decision, `of` the mechanisms, methods and update
    stages that it belongs to, by their YAML names."""

    name: str
    decides: str
    where: str
    find: str
    put: str
    killed_by: str
    nth: int | None = None
    of: tuple[str, ...] = ()


def plant(mutant: Mutant, checkout: Path) -> tuple[Path, bytes]:
    """Return the file that the mutant changes, and its changed content; writes nothing.

    Raises `PlantingError` unless the expression occurs exactly once, or `nth` selects it."""
    module, _, qualname = mutant.where.partition(":")
    path = _file_of(module, checkout, mutant)
    source = path.read_bytes()
    tree = ast.parse(source)
    scope = _defined(tree, qualname.split("."))
    if scope is None:
        raise PlantingError(f"{mutant.name}: no '{qualname}' in {module}")
    wanted = ast.dump(ast.parse(mutant.find, mode="eval").body)
    found = [node for node in ast.walk(scope) if isinstance(node, ast.expr)]
    found = [node for node in found if ast.dump(node) == wanted]
    found.sort(key=lambda node: (node.lineno, node.col_offset))
    if not found or (mutant.nth is None and len(found) > 1) or len(found) < (mutant.nth or 1):
        raise PlantingError(
            f"{mutant.name}: '{mutant.find}' occurs {len(found)} times in {mutant.where}"
            + (", nth does not fit" if mutant.nth else ", say which by nth" if found else "")
        )
    node = found[(mutant.nth or 1) - 1]
    lines = source.splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: (node.end_lineno or 0) - 1])) + (node.end_col_offset or 0)
    changed = source[:start] + b"(" + mutant.put.encode() + b")" + source[end:]
    if ast.dump(ast.parse(changed)) == ast.dump(tree):
        raise PlantingError(f"{mutant.name}: changes nothing")
    return path, changed


def _file_of(module: str, checkout: Path, mutant: Mutant) -> Path:
    for root in ROOTS:
        base = checkout / root / module.replace(".", "/")
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
    raise PlantingError(f"{mutant.name}: no module {module}")


def _defined(tree: ast.AST, names: list[str]) -> ast.AST | None:
    """Return the definition of a qualified name: a function, a class, or an assignment."""
    scope: ast.AST | None = tree
    for name in names:
        scope = next((node for node in _body(scope) if name in _names(node)), None)
        if scope is None:
            return None
    return scope


def _body(scope: ast.AST | None) -> list[ast.AST]:
    """Return the statements of a scope, also those under `if`, `with` and `try`."""
    found: list[ast.AST] = []
    waiting = list(ast.iter_child_nodes(scope)) if scope is not None else []
    while waiting:
        node = waiting.pop(0)
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            waiting += ast.iter_child_nodes(node)
    return found


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
    return {target.id for target in targets if isinstance(target, ast.Name)}
