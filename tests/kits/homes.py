"""A made-up table with a numeric label, and a job that predicts the number."""

import csv

import numpy as np
import yaml

NAMES = ["rooms", "place", "price"]
SCHEMA = {
    "origin": "public",
    "label": {"column": "price", "number": [0, 1000]},
    "columns": [
        {"name": "rooms", "number": [1, 9]},
        {"name": "place", "category": ["town", "country"]},
    ],
    "missing": ["?"],
}
LOCAL = {"devices": 5, "simulate": True, "data": {"source": "csv", "path": "homes.csv"}}


def homes(count=400):
    """Return rows: more rooms cost more, and the town more than the country."""
    rng = np.random.default_rng(5)
    rows = []
    for _ in range(count):
        rooms, town = rng.uniform(1, 9), rng.random() < 0.5
        price = 150 + 70 * rooms + 120 * town + rng.normal(0, 20)
        rows.append([f"{rooms:.2f}", "town" if town else "country", f"{price:.1f}"])
    return rows


def write_homes(path, rows=None):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([NAMES, *(homes() if rows is None else rows)])
    return path


def homes_job(folder, **changes):
    """Write the job's file beside `homes.csv`; blocks in `changes` replace those here."""
    plain = {
        "job": "homes",
        "data": {"source": "homes", "nominal_records": 60, "schema": SCHEMA},
        "features": [{"name": "identity"}],
        "train": {"method": "fm", "rounds": 3},
        "unsupervised": {"eval_type": "NOT_EVAL"},
        "privacy": {"epsilon": 10},
        "local_run": LOCAL,
        **changes,
    }
    (folder / "homes.yaml").write_text(yaml.safe_dump(plain, sort_keys=False))
    return folder / "homes.yaml"
