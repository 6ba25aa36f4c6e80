"""YAML files -> frozen models, with every problem of a file named at once."""

from __future__ import annotations

from edgeveil.jobs.job import Job
from edgeveil.jobs.load import (
    KINDS,
    Site,
    json_schema,
    kind_of,
    line_of,
    load,
    load_job,
    load_scenario,
    load_site,
    parse_job,
)
from edgeveil.jobs.load_test import LoadOptions
from edgeveil.jobs.local_run import LocalRun
from edgeveil.jobs.policy import Partition, Policy
from edgeveil.jobs.site import BrokerSite, CloudLimits, CloudSite, EdgeSite, ProxySite
from edgeveil.jobs.site_blocks import BrokerLink, DataSource, DeviceData, Shard

__all__ = [
    "KINDS",
    "BrokerLink",
    "BrokerSite",
    "CloudLimits",
    "CloudSite",
    "DataSource",
    "DeviceData",
    "EdgeSite",
    "Job",
    "LoadOptions",
    "LocalRun",
    "Partition",
    "Policy",
    "ProxySite",
    "Shard",
    "Site",
    "json_schema",
    "kind_of",
    "line_of",
    "load",
    "load_job",
    "load_scenario",
    "load_site",
    "parse_job",
]
