"""A mutant: one expression of one function replaced by another, in a copy of the checkout."""

import ast
from dataclasses import KW_ONLY, dataclass

ROOTS = (".", "edge_client", "cloud_server", "proxy", "tools")  # import roots, as for pytest


class PlantingError(Exception):
    """A mutant that does not fit the code: rewrite its entry in `flaws.py`."""


@dataclass(frozen=True)
class Mutant:
    """One small flaw, and the test that must fail with it.

    `where` is `module:qualname` of a function, class or assignment. `change` is "FIND -> PUT": an
    expression in it as source text, compared as a syntax tree, and what replaces it; `nth` selects
    one of several (from 1, in source order). `of` names the mechanisms, methods and update stages
    that it belongs to, by their YAML names."""

    where: str
    change: str
    killed_by: str
    _: KW_ONLY
    nth: int | None = None
    of: tuple[str, ...] = ()


def plant(mutant, checkout):
    """Return the file that the mutant changes, and its changed content; writes nothing.

    Raises `PlantingError` unless the expression occurs exactly once, or `nth` selects it."""
    module, _, qualname = mutant.where.partition(":")
    bases = [checkout / root / module.replace(".", "/") for root in ROOTS]
    files = [path for base in bases for path in (base.with_suffix(".py"), base / "__init__.py")]
    path = next(filter(lambda path: path.is_file(), files), None)
    if path is None:
        raise PlantingError(f"no module {module}")
    source = path.read_bytes()
    scope = tree = ast.parse(source)
    for name in qualname.split("."):
        scope = next((node for node in _statements(scope) if name in _names(node)), None)
        if scope is None:
            raise PlantingError(f"no '{qualname}' in {module}")
    find, _, put = mutant.change.partition(" -> ")
    wanted = ast.dump(ast.parse(find, mode="eval").body)
    found = [node for node in ast.walk(scope) if isinstance(node, ast.expr)]
    found = [node for node in found if ast.dump(node) == wanted]
    found.sort(key=lambda node: (node.lineno, node.col_offset))
    if len(found) < (mutant.nth or 1) or (mutant.nth is None and len(found) > 1):
        raise PlantingError(f"occurs {len(found)} times, and nth is {mutant.nth}")
    node = found[(mutant.nth or 1) - 1]
    lines = source.splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    changed = source[:start] + b"(" + put.encode() + b")" + source[end:]
    if ast.dump(ast.parse(changed)) == ast.dump(tree):
        raise PlantingError("changes nothing")
    return path, changed


def _statements(scope):
    """Yield the statements of a scope, also those under `if`, `with` and `try`."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            yield from _statements(node)


def _names(node):
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
    return {target.id for target in targets if isinstance(target, ast.Name)}
