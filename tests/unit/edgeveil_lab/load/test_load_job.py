"""The job of a load test: a quorum of its own devices, whoever else is enrolled."""

from __future__ import annotations

import math

import pytest

from edgeveil.jobs import Job, parse_job
from edgeveil_lab.load.scenario import LoadOptions, job_yaml


def job(devices: int, enrolled: int, **options) -> Job:
    return parse_job(job_yaml(LoadOptions(devices=devices, **options), enrolled))


@pytest.mark.parametrize("quorum", [1.0, 0.8])
@pytest.mark.parametrize(("devices", "enrolled"), [(6, 6), (6, 7), (20, 10_000), (99_999, 100_000)])
def test_the_quorum_is_of_the_tests_own_devices(devices, enrolled, quorum):
    share = job(devices, enrolled, quorum=quorum).round.quorum
    assert math.ceil(share * enrolled) == math.ceil(quorum * devices)
