"""What is suggested for a name that no table has."""

import pytest

from edgeveil.registry import nearest

KNOWN = ["mnist", "fedavg", "delm_basic", "delm_enhanced", "model", "LAPLACE"]


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("delm", "delm_basic"),
        ("FedAvg", "fedavg"),
        ("minst", "mnist"),
        ("modell", "model"),
        ("laplce", "LAPLACE"),
    ],
)
def test_the_closest_is_suggested(name, suggested):
    assert nearest(name, KNOWN) == f"did you mean '{suggested}'?"


@pytest.mark.parametrize("name", ["", "zzz", "d"])
def test_what_is_close_to_none_lists_all(name):
    assert nearest(name, KNOWN) == (
        "known: LAPLACE, delm_basic, delm_enhanced, fedavg, mnist, model"
    )
