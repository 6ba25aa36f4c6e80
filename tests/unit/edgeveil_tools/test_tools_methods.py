"""`edgeveil methods`: the stated guarantee of every method and stage is that of its price."""

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


def status(events):
    if any(isinstance(event, UnprotectedEvent) for event in events):
        return "none"
    return "claimed" if any(isinstance(event, ClaimedEvent) for event in events) else "proven"


@pytest.fixture
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


OPTIONS = {
    "custom": {"function": "tests.kits.own_training:fit"},
    "statistics": {"columns": [{"name": "age", "number": [0, 100]}]},
}


@pytest.mark.parametrize("name", METHODS.names())
def test_the_status_of_a_method_is_that_of_its_price(name, context):
    method = METHODS[name]
    parameters = method.made(**OPTIONS.get(name, {}))
    rounds = [e for e in method.cloud(parameters, context).plan() if e.phase == TRAIN]
    assert method.privacy == status(method.device(parameters, context).price(rounds[0]))


@pytest.mark.parametrize("name", STAGES.names())
def test_a_stage_has_a_status_where_it_protects(name, context):
    entry, sgd = STAGES[name], METHODS["sgd"]
    stage = entry.build(entry.made(), context)
    events = stage.price(sgd.cloud(sgd.made(), context).plan()[0])
    assert entry.privacy == (status(events) if stage.protects else None)


def test_the_command_lists_all_and_one(capsys):
    assert cli.main(["methods", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["names"]) == len(entries())
    assert cli.main(["methods", "krum"]) == 0
    assert "Blanchard" in capsys.readouterr().out
