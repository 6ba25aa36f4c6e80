"""Claims of `edgeveil proxy`, as the proxy's operator calls it beside a running proxy."""

import json
from contextlib import closing

import pytest

from edgeveil.claim import claim_key
from edgeveil.config.site_files import load_site
from edgeveil_proxy.claims import CLAIMS_FILE, ClaimBook
from edgeveil_tools.cli import main
from tests.kits.site_folders import opened, plan, planned


@pytest.fixture
def proxy(tmp_path, capsys):
    """Call `edgeveil proxy` of a new site; what it printed."""
    site = planned(tmp_path / "site", 1)
    opened(site).apply()

    def call(*words, code=0):
        capsys.readouterr()
        config = site / "bundles" / "proxy" / "edgeveil.yaml"
        assert main(["proxy", *words, "--config", str(config)]) == code
        return capsys.readouterr().out

    return call


def test_a_box_waits_until_the_operator_admits_it_and_an_unused_claim_is_withdrawn(
    proxy, tmp_path, capsys
):
    site = tmp_path / "site"
    config = site / "bundles" / "proxy" / "edgeveil.yaml"
    proxy("admit", "--claim", "ward-1", code=2)  # without a desk there are no claims
    data = {"name": "own", "source": "digits"}
    plan(site, devices={"claims": {"admit": "operator"}, "data": data})
    opened(site).apply()

    def claims():
        found = json.loads(proxy("devices", "--json"))["claims"]
        return {one["name"]: (one["state"], one["device"], one["issued"]) for one in found}

    _, claim = proxy("admit", "--claim", "ward-1").strip().split(",")
    proxy("admit", "--claim", "ward-3", "--valid-h", "0.0000001")
    assert claims()["ward-1"] == ("open", None, 0)
    assert claims()["ward-3"][0] == "expired"
    proxy("admit", "nobody", code=2)
    with closing(ClaimBook(load_site(config).state_dir / CLAIMS_FILE)) as book:
        book.use(claim_key(claim).public().to_bytes(), "ab" * 8)
    assert claims()["ward-1"] == ("used", "ab" * 8, 0)
    proxy("admit", "ward-1")
    proxy("admit", "--claim", "ward-2")
    proxy("revoke", "ward-2")
    assert "ward-2" not in claims()
    proxy("revoke", "ward-1", code=2)
    assert main(["log", str(config), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)["entries"]
    assert [(one["action"], one["what"]) for one in done][-3:-1] == [
        ("claims", {"names": ["ward-2"], "valid_h": 72.0}),
        ("claim-withdraw", {"name": "ward-2"}),
    ]
