"""The search makes graphs that a device runs, and tells what it tried."""

import random

import pytest

from edgeveil.evaluation.graph_check import OPERATORS, check_graph
from edgeveil_lab.audit.timing import (
    BINARY,
    UNARY,
    GraphSearch,
    OperatorChain,
    ScoredChain,
    changed,
    crafted,
    main,
    random_chain,
    records,
)

pytestmark = pytest.mark.slow


def test_it_only_takes_operators_that_a_device_runs():
    assert {*UNARY, *BINARY} <= OPERATORS


def test_random_chains_and_their_changes_pass_the_check():
    chance, record = random.Random(5), records(1)[0]
    for _ in range(60):
        chain = random_chain(chance)
        check_graph(crafted(chain, record))
        check_graph(crafted(changed(chain, chance), record))


def test_a_seed_gives_the_same_chains():
    first, again = ([random_chain(random.Random(s)) for s in range(9)] for _ in range(2))
    assert first == again
    assert len(set(first)) > 5


def test_a_graph_that_cannot_be_run_scores_nothing():
    unknown = OperatorChain((("Erf", None),), double=True)  # no kernel for double
    assert GraphSearch(1).ratio(unknown, 2) == 1.0


def test_the_search_ends_with_the_best_first():
    search, told = GraphSearch(3), []
    found = search.climbed(1.0, told.append)
    assert search.tried > 5
    assert sorted(found, key=lambda one: -one.ratio) == found
    assert set(told) == set(found)


def test_what_is_found_is_told_in_words(capsys):
    chain = OperatorChain((("Mul", 0.5), ("Selu", None)), 90.0, 1.0, "signs", double=True)
    assert str(ScoredChain(chain, 1.284)) == "1.28: Mul 0.5, Selu from signs·90 + 1, double"
    assert main(["--seconds", "0.5", "--unflushed"]) == 0
    assert "graphs tried" in capsys.readouterr().out
