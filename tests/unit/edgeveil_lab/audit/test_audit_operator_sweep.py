"""Every operator that a device runs answers whatever its values are; no times here."""

import numpy as np
import pytest

from edgeveil.errors import DataError
from edgeveil.evaluation.graph_check import OPERATORS, check_graph
from edgeveil.evaluation.onnx_session import aligned, open_session, run_session
from edgeveil_lab.audit.operator_sweep import families, main, sweep_table, swept, variants

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


def test_the_families_hold_what_is_special_about_floating_point():
    found = families((1, 1, 8, 32))
    assert all(values.shape == (1, 1, 8, 32) for values in found.values())
    assert np.isnan(found["NaN"]).all()
    assert np.isinf(found["-inf"]).all()
    subnormal = found["subnormal"].view(np.uint32)
    assert (subnormal > 0).all()
    assert (subnormal < 1 << 23).all()
    assert len(np.unique(found["alternating"])) == 2


def test_a_row_says_what_was_found():
    row = swept(VARIANTS["Relu"], repetitions=1)
    assert set(row.times_s) == set(families())
    assert row.cells()[0] == "Relu"
    assert row.cells()[-1] == "none"
    refused = swept(VARIANTS["Pow (x to the x)"], repetitions=1)
    assert refused.cells()[-1] == "(not allowed)"
    assert "| Relu | " in sweep_table([row, refused])


def test_a_wrong_option_ends_it():
    with pytest.raises(SystemExit):
        main(["--unknown"])
