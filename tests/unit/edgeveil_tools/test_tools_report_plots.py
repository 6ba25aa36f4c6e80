"""The picture of who holds what: counted from what was dealt, marked, small for many devices."""

import base64
import io
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from edgeveil.parts.partitions.dealing import low_quality_devices
from edgeveil_tools.local.data import dealt
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.report.holdings import Holdings, holdings
from edgeveil_tools.report.plots import holdings_plot

JOB = Path("configs/jobs/digits_skewed.yaml")


@pytest.fixture(scope="module")
def held():
    return holdings(*local_job(JOB, Overrides()))


def test_every_record_that_was_dealt_is_counted_at_its_device(held):
    job, run = local_job(JOB, Overrides())
    records, shares = dealt(job, run)
    assert held.counts.shape == (20, 10)
    assert held.sizes.tolist() == [len(share) for share in shares]
    assert held.counts.sum(axis=0).tolist() == np.bincount(records.y).tolist()
    assert held.low_quality.tolist() == low_quality_devices(20, run.partition, run.seed).tolist()
    assert len(held.low_quality) == 6


def test_labels_outside_the_classes_are_left_out():
    job, run = local_job(JOB, Overrides())
    few = job.model_copy(update={"data": job.data.model_copy(update={"classes": 3})})
    records, _ = dealt(job, run)
    assert holdings(few, run).counts.sum() == np.sum(records.y < 3)


def picture(counts, low_quality):
    """The heat map's pixels (classes, devices, 4), class 0 first, as the SVG carries them."""
    from PIL import Image

    svg = holdings_plot(Holdings(np.array(counts), np.array(low_quality, np.int64), "iid"))
    ElementTree.fromstring(svg)
    (image,) = re.findall(r"data:image/png;base64,\s*([^\"]+)", svg)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(image))).convert("RGBA"))


def test_colour_grows_with_the_count_and_tells_low_quality():
    shades = picture([[100, 25, 0], [0, 100, 1]], [1]).astype(int)
    assert shades[:, :, 3].tolist() == [[255, 0], [142, 255], [0, 53]]  # 0.12 + 0.88 sqrt(share)
    blue, red = shades[0, 0, :3], shades[1, 1, :3]
    assert blue[2] > blue[0]
    assert red[0] > red[2]


def test_a_thousand_devices_fit_one_page():
    counts = np.random.default_rng(3).poisson(0.5, (1000, 100))
    svg = holdings_plot(Holdings(counts, np.arange(0, 1000, 3), "dirichlet"))
    assert len(svg) < 400_000
    assert svg.count("<path") < 300


def test_nobody_holding_anything_still_draws():
    assert "<svg" in holdings_plot(Holdings(np.zeros((3, 2), np.int64), np.arange(0), "iid"))
