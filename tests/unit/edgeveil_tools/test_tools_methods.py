"""`edgeveil methods`: every name of every table, and that what is said of it is so."""

import json

import pytest

from edgeveil.parts.features import IdentityParameters, build_features
from edgeveil.parts.method_context import MethodContext
from edgeveil.parts.methods import METHODS
from edgeveil.parts.models import build_network
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.parts.round import TRAIN
from edgeveil.parts.stages import STAGES
from edgeveil.privacy.events import ClaimedEvent, UnprotectedEvent
from edgeveil_tools import cli
from edgeveil_tools.methods import entries

ENTRIES = entries()


def status(events):
    if any(isinstance(event, UnprotectedEvent) for event in events):
        return "none"
    return "claimed" if any(isinstance(event, ClaimedEvent) for event in events) else "proven"


def context():
    return MethodContext(
        epsilon=8.0,
        delta=1e-5,
        max_participations=10,
        classes=3,
        input_shape=(4,),
        features=build_features([IdentityParameters()]),
        nominal_records=50,
        devices=5,
        network=build_network(NetworkParameters(hidden=()), (4,), 3),
    )


@pytest.mark.parametrize("name", METHODS.names())
def test_the_status_of_a_method_is_that_of_its_price(name):
    method = METHODS[name]
    parameters = method.made()
    given = context()
    rounds = [e for e in method.cloud(parameters, given).plan() if e.phase == TRAIN]
    events = method.device(parameters, given).price(rounds[0])
    assert METHODS[name].privacy == status(events)


@pytest.mark.parametrize("name", STAGES.names())
def test_a_stage_has_a_status_where_it_protects(name):
    entry = STAGES[name]
    stage = entry.build(entry.made(), context())
    events = stage.price(METHODS["sgd"].cloud(METHODS["sgd"].made(), context()).plan()[0])
    expected = status(events) if stage.protects else None
    assert STAGES[name].privacy == expected


def test_the_command_lists_all_and_one(capsys):
    assert cli.main(["methods", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["names"]) == len(ENTRIES)
    assert cli.main(["methods", "krum"]) == 0
    said = capsys.readouterr().out
    assert "Blanchard" in said
    assert "fedavg" not in said
