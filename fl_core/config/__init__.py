"""YAML files -> frozen models, with every problem of a file named at once."""

from __future__ import annotations

from fl_core.config.job import Job
from fl_core.config.load import (
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
from fl_core.config.load_test import LoadOptions
from fl_core.config.local_run import LocalRun
from fl_core.config.policy import Partition, Policy
from fl_core.config.site import BrokerSite, CloudLimits, CloudSite, EdgeSite, ProxySite
from fl_core.config.site_blocks import BrokerLink, DataSource, DeviceData, Shard

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
