"""The `local_run` block: a whole fleet on one machine. Never part of the job that devices see."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edgeveil.settings.base import Block
from edgeveil.sites.data import DataFiles, Partition, SourceName
from edgeveil.sites.policy import Policy


class RunData(DataFiles):
    """The user's own records; digits and published sets that are in a usual place need none."""

    source: SourceName | None = Field(default=None, max_length=300, examples=["csv"])
    """What the records are read from, as in a site file; null: what the job's `data.source` names.
    `images` without a form have that of `data.input_shape`."""


class LocalRun(Block):
    """How `edgeveil run` plays the job on this machine; a submitted job leaves it out."""

    devices: int = Field(default=20, ge=1, le=10000)
    """Devices to play, each with its own keys, connection and records."""
    workers: int = Field(default=2, ge=1, le=256)
    """Processes that host the devices."""
    seed: int = Field(default=7, ge=0, lt=1 << 63)
    """Seed of the dealing of records, and where `simulate` is true of the noise. Never of keys."""
    simulate: bool = False
    """Play all parties in one process, in memory, without encryption, the noise seeded."""
    data: RunData = RunData()
    """Where the records are that are dealt to the devices."""
    infer_only: int = Field(default=0, ge=0, le=10000)
    """How many of the devices have the role `infer` and take part in evaluation alone."""
    partition: Partition = Partition()
    """How the records are dealt to the devices."""
    test_records: int | None = Field(default=None, ge=1, le=10**9)
    """Records that no device gets and the cloud tests on, of digits and published sets; null: 360
    of digits, all of a published test half."""
    test_share: float | None = Field(default=None, ge=0, lt=1, examples=[0.2])
    """The same as a share, of files of your own: each record is held back or dealt by a hash of its
    own; null: a fifth."""
    broker: Literal["auto", "amqtt", "mosquitto"] = "auto"
    """Broker to start; `auto`: mosquitto where it is installed, else amqtt."""
    protocol: Literal[5, 4] = 5
    """MQTT version: 5, or 4 for 3.1.1."""
    policy: Policy = Policy()
    """The owners' policy, the same for all devices of the run."""
