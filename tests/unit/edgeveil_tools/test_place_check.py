"""`edgeveil check`: what of an installed bundle ends soon, or was changed."""

import datetime
import shutil

import pytest

from edgeveil.crypto.authorities import Authority, certificate_pem, new_key
from edgeveil_tools import checks
from edgeveil_tools.cli import main
from edgeveil_tools.site.bundles import install, problems_of
from tests.kits.site_folders import opened, plan, planned

CERTIFICATE_DAYS, TRUST_DAYS = 90, 180  # of this plan, and of every new root's delegations


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("check")
    site = planned(folder / "site", 1)
    plan(site, certificate_days=CERTIFICATE_DAYS)
    opened(site).apply()
    for name in ("proxy", "box-0001"):
        install(site / "bundles" / name, folder / name)
    return folder


@pytest.fixture
def box(installed, tmp_path):
    return shutil.copytree(installed / "box-0001", tmp_path / "box")


def test_a_certificate_that_ends_soon_is_named_with_its_day(installed, capsys, monkeypatch):
    for name in ("proxy", "box-0001"):
        assert problems_of(installed / name, CERTIFICATE_DAYS - 2) == []
        assert main(["check", str(installed / name)]) == 0
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=CERTIFICATE_DAYS)
    (problem,) = problems_of(installed / "box-0001", CERTIFICATE_DAYS + 2)
    assert problem.startswith(f"tls/edge.crt: ends {ends:%Y-%m-%d}")
    both = problems_of(installed / "proxy", CERTIFICATE_DAYS + 2)
    assert [line.partition(":")[0] for line in both] == ["tls/cloud.crt", "tls/edge.crt"]
    monkeypatch.setattr(checks, "SOON_DAYS", CERTIFICATE_DAYS + 2)
    capsys.readouterr()
    assert main(["check", str(installed / "box-0001")]) == 1
    assert capsys.readouterr().out.splitlines() == [problem]


def test_trust_that_ends_soon_and_files_that_came_later_are_checked_too(box):
    assert not [one for one in problems_of(box, TRUST_DAYS - 2) if "trust" in one]
    assert problems_of(box, TRUST_DAYS + 2)[-1].startswith("trust/trust.json: ")
    (box / "state" / "trust.json").write_text("{}")
    (problem,) = problems_of(box, 30)
    assert problem.startswith("state/trust.json: ")
    (box / "state" / "trust.json").unlink()
    key = new_key().public_key()
    claimed = Authority.make("claims").client("0123456789abcdef", key, issue=0, days=9)
    (box / "state" / "edge.crt").write_bytes(certificate_pem(claimed))
    assert problems_of(box, 8) == []
    (problem,) = problems_of(box, 10)
    assert problem.startswith("state/edge.crt: ends ")


@pytest.mark.parametrize("path", ["tls/edge.crt", "COMMANDS.md"])
def test_a_file_that_was_changed_or_removed_is_named(box, path):
    for damage in (lambda: (box / path).write_bytes(b"other"), (box / path).unlink):
        damage()
        assert {one.partition(":")[0] for one in problems_of(box, 30)} == {path}
