"""Claims of `edgeveil proxy`, as the proxy's operator calls it beside a running desk."""

import json
from contextlib import closing

import pytest

from edgeveil.claim import claim_key
from edgeveil.config.site_files import load_site
from edgeveil_proxy.claims import CLAIMS_FILE, ClaimBook
from edgeveil_tools.cli import main
from tests.kits.site_folders import opened, plan, planned


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """The site file of a proxy whose operator admits boxes that bring a claim."""
    site = planned(tmp_path_factory.mktemp("claims") / "site", 1)
    data = {"name": "own", "source": "digits"}
    plan(site, devices={"claims": {"admit": "operator"}, "data": data})
    opened(site).apply()
    return site / "bundles" / "proxy" / "edgeveil.yaml"


@pytest.fixture
def claims(config, capsys):
    """Calls a sub-command; what it printed."""

    def call(name, *rest, code=0):
        capsys.readouterr()
        command = {"add": ["admit", "--claim"], "admit": ["admit"], "list": ["devices"]}
        words = command.get(name, ["revoke"])
        assert main(["proxy", *words, "--config", str(config), *rest]) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    return call


def listed(claims):
    found = json.loads(claims("list", "--json"))["claims"]
    return {one["name"]: (one["state"], one["device"], one["issued"]) for one in found}


def test_a_box_waits_until_the_operator_admits_it_and_an_unused_claim_is_withdrawn(
    config, claims, capsys
):
    _, claim = claims("add", "ward-1").strip().split(",")
    claims("add", "ward-3", "--valid-h", "0.0000001")
    assert listed(claims)["ward-1"] == ("open", None, 0)
    assert listed(claims)["ward-3"][0] == "expired"
    claims("admit", "nobody", code=2)
    state = load_site(config).state_dir
    with closing(ClaimBook(state / CLAIMS_FILE)) as book:
        book.use(claim_key(claim).public().to_bytes(), "ab" * 8)
    assert listed(claims)["ward-1"] == ("used", "ab" * 8, 0)
    claims("admit", "ward-1")
    claims("add", "ward-2")
    claims("withdraw", "ward-2")
    assert "ward-2" not in listed(claims)
    claims("withdraw", "ward-1", code=2)
    assert main(["log", str(config), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)["entries"]
    assert [(one["action"], one["what"]) for one in done][-3:-1] == [
        ("claims", {"names": ["ward-2"], "valid_h": 72.0}),
        ("claim-withdraw", {"name": "ward-2"}),
    ]


def test_a_proxy_without_a_desk_has_no_claims(tmp_path):
    opened(planned(tmp_path / "site", 1)).apply()
    config = tmp_path / "site" / "bundles" / "proxy" / "edgeveil.yaml"
    assert main(["proxy", "admit", "--claim", "ward-1", "--config", str(config)]) == 2
