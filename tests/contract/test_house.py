"""What keeps the house easy to live in, and no linter looks at."""

import ast
import graphlib
from collections import defaultdict

from tests.drawn.architecture import modules

TREES = {name: ast.parse(path.read_text()) for name, path in modules().items()}


def imported_at_once(name):
    """The modules of ours that importing `name` imports: not those inside of functions."""
    waiting, found = list(TREES[name].body), set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = inner & TREES.keys()
            found |= modules | ({node.module} if modules != inner else set())
        waiting += ast.iter_child_nodes(node)
    return found & TREES.keys() - {name}


def test_no_module_imports_itself_by_way_of_others():
    graphlib.TopologicalSorter({name: imported_at_once(name) for name in TREES}).prepare()


def test_a_public_class_name_stands_once():
    places = defaultdict(list)
    for name, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
