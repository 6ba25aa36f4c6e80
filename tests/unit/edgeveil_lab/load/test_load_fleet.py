"""A fleet in one file, and the files for the site's operators beside it."""

import stat
from contextlib import closing

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


def admitted(file):
    with closing(Registry(file)) as registry:
        return {entry.device_id for entry in registry.devices()}, registry.roster()[0]


def test_the_file_is_its_owners_and_gives_the_same_devices_and_is_never_written_over(made):
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    first, again = LoadFleet.load(made), LoadFleet.load(made)
    assert first == again
    assert len({m.signing for m in first.members} | {m.opening for m in first.members}) == 6
    assert first.members[0].password not in repr(first)
    with pytest.raises(UsageError):
        write_fleet(made, 2)
    for raw in (b"", b"{}", b"\xc1", b"\x82\xa6format\xb0\xff"):
        with pytest.raises(UsageError):
            LoadFleet.from_bytes(raw + bytes(20), "fleet")


def test_a_load_test_takes_out_what_it_admitted_and_nobody_else(made):
    file, fleet = made.parent / "registry.sqlite", LoadFleet.load(made)
    enrolments = Enrolment.load_all(made.with_name("load.fleet.enrolments"))
    admit(file, enrolments, 100)
    users = read_users(made.with_name("load.fleet.users"))
    everybody = {one.device_id for one in fleet.enrolments()}
    assert admitted(file)[0] == set(users) == everybody
    first = fleet.members[0]
    assert password_matches(users[first.enrolment().device_id], first.password)
    for _ in range(2):
        revoke(file, enrolments[:2], 100)
        assert admitted(file) == ({enrolments[2].device_id}, 2)
    admit(file, enrolments, 100)  # the next test comes with the same fleet
    assert admitted(file)[0] == everybody


def test_one_enrolment_a_file_or_one_a_line(tmp_path, made):
    one = LoadFleet.load(made).enrolments()[0]
    (tmp_path / "one.json").write_text(one.to_json())
    assert Enrolment.load_all(tmp_path / "one.json") == [one]
    (tmp_path / "two").write_text(one.to_line() + one.to_line()[:-20] + "\n")
    with pytest.raises(EnrolmentError, match=r"two:2"):
        Enrolment.load_all(tmp_path / "two")
