"""What `make mutants` plants fits the code, names a test that there is, and leaves nothing out."""

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest

from edgeveil.parts.methods import METHODS
from edgeveil.parts.stages import STAGES
from edgeveil.privacy.mechanism_table import MECHANISMS
from tests.mutants.__main__ import main
from tests.mutants.flaws import MUTANTS
from tests.mutants.planting import Mutant, PlantingError, plant

CHECKOUT = Path(__file__).parents[2]
PRICED = {
    *MECHANISMS,
    *(name for name in METHODS if METHODS[name].privacy != "none"),
    *(name for name in STAGES if STAGES[name].privacy is not None),
}


def test_every_mechanism_method_and_stage_has_its_mutants():
    planted = {name for mutant in MUTANTS for name in mutant.of}
    assert PRICED - planted == set(), "a new mechanism brings its mutants: docs/extending.md"
    assert planted <= {*MECHANISMS, *METHODS, *STAGES}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_code_and_names_a_test_of_the_ordinary_suite(mutant):
    plant(mutant, CHECKOUT)
    file, _, name = mutant.killed_by.partition("::")
    tree = ast.parse((CHECKOUT / file).read_text("utf-8"))
    tests = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    found = tests[name.partition("[")[0]]
    of_file = [text for text in map(ast.unparse, tree.body) if text.startswith("pytestmark")]
    marks = [*of_file, *map(ast.unparse, found.decorator_list)]
    assert not re.search(r"mark\.(slow|drill)\b", " ".join(marks))


def test_names_are_used_once():
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names))


SUBJECT = '''"""Adds noise."""

class Noise:
    def scale(self, x):
        if x:
            return (x + 1) * 2
        return x + 1
'''
TESTS = """from subject import Noise

def test_finds():
    assert Noise().scale(1) == 4

def test_blind():
    assert Noise().scale(1)

def test_wrong():
    assert Noise().scale(1) == 5
"""


def mutant(name="half", find="(x + 1) * 2", put="x + 1", test="test_finds", **changes):
    given = {"where": "subject:Noise.scale", "killed_by": f"test_it.py::{test}", **changes}
    return Mutant(name=name, decides="noise scale", find=find, put=put, **given)


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "subject.py").write_text(SUBJECT)
    (folder / "test_it.py").write_text(TESTS)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


def test_an_expression_is_found_by_its_tree_and_replaced_as_one(checkout):
    path, changed = plant(mutant(find="(x+1)  *2", put="x - 1"), checkout)
    assert path == checkout / "subject.py"
    assert changed.decode() == SUBJECT.replace("(x + 1) * 2", "(x - 1)")
    _, changed = plant(mutant(find="x + 1", put="x or 2", nth=1), checkout)
    assert changed.decode() == SUBJECT.replace("(x + 1) * 2", "((x or 2)) * 2")


@pytest.mark.parametrize(
    "changes",
    [
        {"find": "x + 2"},
        {"find": "x + 1"},
        {"find": "x + 1", "nth": 3},
        {"where": "subject:Noise.size"},
        {"where": "subjects:Noise.scale"},
        {"put": "(x + 1) * 2"},
    ],
)
def test_a_mutant_that_does_not_fit_is_told(checkout, changes):
    with pytest.raises(PlantingError):
        plant(mutant(**changes), checkout)


def test_only_a_test_that_fails_for_the_flaw_alone_is_a_find(checkout, capsys):
    wanted = {
        "found": ("killed", mutant("found")),
        "missed": ("survived", mutant("missed", test="test_blind")),
        "unsound": ("broken", mutant("unsound", test="test_wrong")),
        "no-such-test": ("broken", mutant("no-such-test", test="test_none")),
        "no-such-name": ("broken", mutant("no-such-name", put="unknown")),
        "unfit": ("broken", mutant("unfit", find="y")),
    }
    mutants = [one for _, one in wanted.values()]
    assert main(["--json"], mutants, checkout) == 1
    told = json.loads(capsys.readouterr().out)["mutants"]
    assert {one["name"]: one["verdict"] for one in told} == {n: v for n, (v, _) in wanted.items()}
    assert main(["--only", "f*"], mutants, checkout) == 0
    assert (checkout / "subject.py").read_text() == SUBJECT
    assert list(checkout.parent.iterdir()) == [checkout]


def test_a_test_that_takes_too_long_finds_nothing(checkout, capsys):
    slow = [mutant("slow", put="__import__('time').sleep(600)")]
    assert main(["--limit-s", "4", "--json"], slow, checkout) == 1
    (told,) = json.loads(capsys.readouterr().out)["mutants"]
    assert told["verdict"] == "broken"
