"""What `make mutants` plants fits the code, names a test that there is, and leaves nothing out."""

import ast
import re
from pathlib import Path

import pytest

from edgeveil.parts.methods import METHODS
from edgeveil.parts.stages import STAGES
from tests.kits.mechanisms import MECHANISMS
from tests.mutants.flaws import MUTANTS
from tests.mutants.planting import plant

CHECKOUT = Path(__file__).parents[2]
PRICED = {
    *MECHANISMS,
    *(name for name in METHODS if METHODS[name].privacy != "none"),
    *(name for name in STAGES if STAGES[name].privacy is not None),
}


def test_every_mechanism_method_and_stage_has_its_mutants():
    planted = {name for mutant in MUTANTS.values() for name in mutant.of}
    assert PRICED - planted == set(), "a new mechanism brings its mutants: docs/extending.md"
    assert planted <= {*MECHANISMS, *METHODS, *STAGES}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_fits_the_code_and_names_a_test_of_the_ordinary_suite(mutant):
    plant(mutant, CHECKOUT)
    file, _, name = mutant.killed_by.partition("::")
    tree = ast.parse((CHECKOUT / file).read_text("utf-8"))
    tests = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    found = tests[name.partition("[")[0]]
    of_file = [text for text in map(ast.unparse, tree.body) if text.startswith("pytestmark")]
    marks = [*of_file, *map(ast.unparse, found.decorator_list)]
    assert not re.search(r"mark\.(slow|drill)\b", " ".join(marks))
