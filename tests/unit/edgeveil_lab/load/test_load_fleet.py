"""A fleet in one file, and the files for the site's operators beside it."""

import stat

import pytest

from edgeveil.enrolment import Enrolment, EnrolmentError
from edgeveil.errors import UsageError
from edgeveil_lab.load.sites import LoadFleet, admit, revoke, write_fleet
from edgeveil_proxy.registry import Registry
from edgeveil_tools.site.broker_rules import password_matches, read_users


@pytest.fixture
def made(tmp_path):
    write_fleet(tmp_path / "load.fleet", 3)
    return tmp_path / "load.fleet"


def test_the_file_is_its_owners_and_gives_the_same_devices(made):
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    first, again = LoadFleet.load(made), LoadFleet.load(made)
    assert first == again
    assert len({m.signing for m in first.members} | {m.opening for m in first.members}) == 6
    assert first.members[0].password not in repr(first)


def test_the_proxy_admits_all_of_them_and_the_broker_knows_them(made):
    enrolments = Enrolment.load_all(made.with_name("load.fleet.enrolments"))
    admit(made.parent / "registry.sqlite", enrolments, 100)
    registry = Registry(made.parent / "registry.sqlite")
    admitted = {entry.device_id for entry in registry.devices()}
    registry.close()
    users = read_users(made.with_name("load.fleet.users"))
    assert admitted == set(users) == {e.device_id for e in LoadFleet.load(made).enrolments()}
    first = LoadFleet.load(made).members[0]
    assert password_matches(users[first.enrolment().device_id], first.password)


def test_a_load_test_takes_out_what_it_admitted_and_nobody_else(made):
    file, enrolments = made.parent / "registry.sqlite", LoadFleet.load(made).enrolments()
    admit(file, enrolments, 100)
    revoke(file, enrolments[:2], 100)
    revoke(file, enrolments[:2], 100)
    registry = Registry(file)
    assert [entry.device_id for entry in registry.devices()] == [enrolments[2].device_id]
    epoch, _ = registry.roster()
    registry.close()
    assert epoch == 2
    admit(file, enrolments, 100)  # the next test comes with the same fleet
    registry = Registry(file)
    assert len(registry.devices()) == 3
    registry.close()


def test_a_fleet_is_never_written_over(made):
    with pytest.raises(UsageError, match="File exists"):
        write_fleet(made, 2)


@pytest.mark.parametrize("raw", [b"", b"{}", b"\xc1", b"\x82\xa6format\xb0\xff"])
def test_a_fleet_file_that_is_none_is_refused(raw):
    with pytest.raises(UsageError, match="not a fleet file"):
        LoadFleet.from_bytes(raw + bytes(20), "fleet")


def test_one_enrolment_a_file_or_one_a_line(tmp_path, made):
    one = LoadFleet.load(made).enrolments()[0]
    (tmp_path / "one.json").write_text(one.to_json())
    assert Enrolment.load_all(tmp_path / "one.json") == [one]
    (tmp_path / "two").write_text(one.to_line() + one.to_line()[:-20] + "\n")
    with pytest.raises(EnrolmentError, match=r"two:2"):
        Enrolment.load_all(tmp_path / "two")
