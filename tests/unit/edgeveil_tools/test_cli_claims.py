"""Claims of `edgeveil proxy`, as the proxy's operator calls it beside a running desk."""

import json

import pytest
import yaml
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from edgeveil.claim import ClaimAnswer, ClaimRequest, claim_key, claimed_key_id
from edgeveil.config.site_files import load_site
from edgeveil.crypto.authorities import Authority, new_key
from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment
from edgeveil_proxy.claims import CLAIMS_FILE, ClaimBook, ClaimDesk
from edgeveil_proxy.registry import REGISTRY_FILE, Registry
from edgeveil_tools.cli import main
from edgeveil_tools.site.fleet_plan import PLAN_FILE

PROXY = SigningKey.generate()


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """The site file of a proxy whose operator admits boxes that bring a claim."""
    folder = tmp_path_factory.mktemp("claims")
    assert main(["site", "init", str(folder / "site"), "--devices", "1"]) == 0
    plan = yaml.safe_load((folder / "site" / PLAN_FILE).read_text())
    plan["fleet"]["devices"] |= {
        "claims": {"admit": "operator"},
        "data": {"name": "own", "source": "digits"},
    }
    (folder / "site" / PLAN_FILE).write_text(yaml.safe_dump(plan))
    assert main(["site", "apply", str(folder / "site"), "--no-passphrase"]) == 0
    bundle = str(folder / "site" / "bundles" / "proxy")
    assert main(["site", "install", bundle, str(folder / "proxy")]) == 0
    return folder / "proxy" / "edgeveil.yaml"


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


class Box:
    """A box that brings a claim to the proxy's desk."""

    def __init__(self, config, line):
        self.name, claim = line.strip().split(",")
        signing = SigningKey.generate()
        self._enrolment = Enrolment.make(signing, OpeningKey.generate())
        self.id = self._enrolment.device_id
        point = new_key().public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        self._asked = ClaimRequest.make(claim_key(claim), self._enrolment, point).to_bytes()
        self._site = load_site(config)

    def asks(self):
        state, desk = self._site.state_dir, self._site.claims
        book = ClaimBook(state / CLAIMS_FILE)
        registry = Registry(state / REGISTRY_FILE, limit=self._site.limits.devices)
        authority = Authority.load(desk.authority_cert_file, desk.authority_key_file)
        answering = ClaimDesk(
            book,
            registry,
            authority,
            lambda: PROXY,
            certificate_days=9,
            approved_by_operator=desk.admit == "operator",
            per_minute=100,
        )
        answer = ClaimAnswer.from_bytes(
            answering.answer(claimed_key_id(self._asked), self._asked), PROXY.public()
        )
        registry.close()
        book.close()
        return answer.verdict


def test_a_box_waits_until_the_operator_admits_it(config, claims, capsys):
    box = Box(config, claims("add", "ward-1"))
    assert listed(claims)["ward-1"] == ("open", None, 0)
    assert box.asks() == "waiting"
    assert listed(claims)["ward-1"] == ("used", box.id, 0)
    assert claims("admit", "ward-1") == "ward-1: admitted\n"
    assert box.asks() == "admitted"
    assert listed(claims)["ward-1"] == ("used", box.id, 1)
    assert ["claim", "ward-1", "used", box.id] in [
        line.split() for line in claims("list").splitlines()
    ]
    assert main(["proxy", "devices", "--config", str(config)]) == 0
    assert box.id in capsys.readouterr().out


def test_an_unused_claim_is_withdrawn_and_a_used_one_is_not(config, claims):
    box = Box(config, claims("add", "ward-2"))
    assert claims("withdraw", "ward-2") == "ward-2: withdrawn\n"
    assert "ward-2" not in listed(claims)
    assert box.asks() == "refused"
    again = Box(config, claims("add", "ward-2"))
    assert again.asks() == "waiting"
    assert "there is no unused claim of 'ward-2'" in claims("withdraw", "ward-2", code=2)


def test_a_claim_that_nobody_used_in_time_is_listed_as_expired(claims):
    claims("add", "ward-3", "--valid-h", "0.0000001")
    assert listed(claims)["ward-3"][0] == "expired"


def test_what_the_operator_did_stands_in_the_proxys_log(config, claims, capsys):
    claims("add", "ward-4")
    claims("withdraw", "ward-4")
    assert main(["log", str(config), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)["entries"]
    assert [(one["action"], one["what"]) for one in done][-2:] == [
        ("claims", {"names": ["ward-4"], "valid_h": 72.0}),
        ("claim-withdraw", {"name": "ward-4"}),
    ]


def test_a_proxy_without_a_desk_has_no_claims(tmp_path, capsys):
    assert main(["site", "init", str(tmp_path / "site"), "--devices", "1"]) == 0
    assert main(["site", "apply", str(tmp_path / "site"), "--no-passphrase"]) == 0
    config = tmp_path / "site" / "bundles" / "proxy" / "edgeveil.yaml"
    assert main(["proxy", "admit", "--claim", "ward-1", "--config", str(config)]) == 2
    assert "admits nobody by claims" in capsys.readouterr().err
