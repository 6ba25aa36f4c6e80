"""What a device's owner allows, and how records are dealt to devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field

from edgeveil.data.partition import PARTITIONS
from edgeveil.data.sources import brings_its_test
from edgeveil.jobs.base import Block, Mix, named_in
from edgeveil.jobs.methods import METHOD_NAMES


class Policy(Block):
    """The owner's limits. No job can override them; a job beyond them is refused unread."""

    max_epsilon_per_job: float = Field(default=10.0, ge=0)
    """Largest training ε of one job."""
    lifetime_epsilon: float = Field(default=50.0, ge=0)
    """Largest training ε of all jobs together on this data set."""
    lifetime_delta: float = Field(default=1e-4, ge=0, lt=1, examples=[1e-4])
    """Largest δ of all jobs together on this data set."""
    max_inference_epsilon: float = Field(default=100.0, ge=0)
    """Largest ε of all inference uploads together on this data set."""
    accept_unproven: bool = False
    """Take part in jobs whose guarantee is claimed and not proven."""
    accept_unprotected: bool = False
    """Upload inferences, or trained updates, without noise when a job asks for it."""
    accept_unshuffled: bool = False
    """Take part in jobs with `proxy.shuffle: none`, whose uploads are not mixed at the proxy."""
    allowed_methods: tuple[
        Annotated[
            str,
            AfterValidator(named_in("method", METHOD_NAMES)),
            Field(json_schema_extra={"enum": list(METHOD_NAMES)}),
        ],
        ...,
    ] = ("fm",)
    """Training methods that may read the data; one without a proof must be named here."""
    allowed_backbones: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], ...] = ()
    """SHA-256 digests (hex) of the ONNX feature extractors that may run on the data.

    The owners that `edgeveil run` plays allow those of its own job.
    """
    allow_python_models: bool = False
    """Run the installed Python code that a job's `model: {name: python}` names, as this user."""
    min_devices: int = Field(default=5, ge=1)
    """Fewest devices a round must select; hiding among fewer is refused."""
    max_budget_s: float = Field(default=120.0, gt=0, le=86400)
    """Longest time budget of a job's rounds (`round.budget_s`), in seconds."""
    require_cover: bool = False
    """Answer no round without cover traffic (`cover_traffic` at the proxy), and say nothing."""


class Partition(Block):
    """How the records of one data set are dealt to simulated devices."""

    kind: Annotated[
        str,
        AfterValidator(named_in("partition", PARTITIONS)),
        Field(json_schema_extra={"enum": PARTITIONS.names()}),
    ] = "iid"
    """`iid`: at random. `n_class`: each device holds records of about so many classes.
    `dirichlet`: each class is cut in uneven proportions. `quantity_skew`: sizes are uneven."""
    classes_per_device: int = Field(default=2, ge=1, le=10000)
    """Classes of one device; read by `n_class` alone."""
    alpha: float = Field(default=0.5, gt=0, le=1e6)
    """Evenness of `dirichlet` and `quantity_skew`: 0.1 is very uneven, 100 nearly even."""
    lq_user: float = Field(default=0.0, ge=0, le=1)
    """Share of the devices that hold records of low quality."""
    lq_data: float = Field(default=0.0, ge=0, le=1)
    """Share of such a device's records that are of low quality: of another class, and noisy."""
    lq_noise: float = Field(default=0.5, ge=0, le=100)
    """Standard deviation of that noise, as a share of the range of the data set's values."""
    lq_range: tuple[float, float] | None = Field(default=None, examples=[[0, 255]])
    """That range, least and greatest value, for files of your own, of whose records it may not
    follow; published sets have theirs."""


_READ_BY = {"classes_per_device": ("n_class",), "alpha": ("dirichlet", "quantity_skew")}


def dealing_mixes(rule: Partition, source: str, at: str, source_key: str) -> Iterator[Mix]:
    """What the dealing of one data set needs or does not read; the rule stands at key `at`."""
    yield from partition_mixes(rule, at)
    published = brings_its_test(source)
    if published and rule.lq_range is not None:
        text = f"is for files of your own, {source} has a range of its own; drop it"
        yield Mix((f"{at}.lq_range", source_key), text)
    if rule.lq_data and rule.lq_range is None and not published:
        text = (
            "is noise in a range that may not follow from your own records; add lq_range: [0, 255]"
        )
        yield Mix((f"{at}.lq_data", f"{at}.lq_range"), text)


def partition_mixes(rule: Partition, at: str) -> Iterator[Mix]:
    """Impossible mixes of one `partition` block that stands at key `at`."""
    if bool(rule.lq_user) != bool(rule.lq_data):
        set_key, zero = ("lq_user", "lq_data") if rule.lq_user else ("lq_data", "lq_user")
        text = f"disturbs nothing while {zero} is 0; set both, or neither"
        yield Mix((f"{at}.{set_key}", f"{at}.{zero}"), text)
    if rule.lq_range is not None and rule.lq_range[0] >= rule.lq_range[1]:
        text = (
            f"must be the least and the greatest value, got {list(rule.lq_range)}; write [0, 255]"
        )
        yield Mix((f"{at}.lq_range",), text)
    for key, kinds in _READ_BY.items():
        if rule.kind not in kinds and getattr(rule, key) != Partition.model_fields[key].default:
            text = f"is read by {' and '.join(kinds)} alone, and the kind is {rule.kind}; drop it"
            yield Mix((f"{at}.{key}", f"{at}.kind"), text)
