"""Jobs that ask whether a file's first record holds some cells: nothing is told, and would be."""

from edgeveil_lab.audit.schema_guard import play


def test_no_schema_asks_a_file_for_its_first_record():
    found = play(False, True)
    assert not found.broke, found.figure


def test_the_attack_finds_a_device_that_takes_a_record_for_names():
    assert play(True, True).broke
