"""Every operator that a device runs answers whatever its values are; no times here."""

import pytest

from edgeveil.errors import DataError
from edgeveil.evaluation.graph_check import OPERATORS, check_graph
from edgeveil.evaluation.onnx_session import aligned, open_session, run_session
from tests.kits.operator_variants import families, variants

VARIANTS = {variant.name: variant for variant in variants()}


def allowed(variant):
    try:
        check_graph(variant.graph())
    except DataError:
        return False
    return True


ALLOWED = [name for name, variant in VARIANTS.items() if allowed(variant)]


def test_every_allowed_operator_is_tried():
    assert {VARIANTS[name].operator for name in ALLOWED} == OPERATORS


@pytest.mark.parametrize("name", ALLOWED)
def test_an_allowed_operator_answers_in_one_shape_whatever_the_values(name):
    session = open_session(VARIANTS[name].graph())
    shapes = {
        run_session(session, "y", {"x": aligned(values)}).shape for values in families().values()
    }
    assert len(shapes) == 1


@pytest.mark.parametrize(
    "name",
    [
        "PRelu",
        "Equal (x, ⅓)",
        "Pow (x to the x)",
        "Pow (⅓ to the x)",
        "Pow (constant exponent 0.5)",
        "Pow (constant exponent -1, double)",
        "Cast (to float16)",
        "Cast (to bfloat16)",
    ],
)
def test_what_takes_its_time_from_the_values_is_not_allowed(name):
    assert name not in ALLOWED
