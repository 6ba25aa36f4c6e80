"""A made-up table of people with names, and a job that learns from it."""

import csv

import numpy as np
import yaml

NAMES = ["age", "work", "hours", "note", "income"]
SCHEMA = {
    "origin": "public",
    "label": {"column": "income", "classes": ["low", "high"]},
    "columns": [
        {"name": "age", "number": [18, 90]},
        {"name": "work", "category": ["Private", "State", "none"]},
        {"name": "hours", "number": [0, 80]},
    ],
    "missing": ["?"],
}


def people(count=400):
    """Return rows in which older people who work for the state mostly have a high income."""
    rng = np.random.default_rng(5)
    rows = []
    for k in range(count):
        age, hours = int(rng.integers(18, 90)), int(rng.integers(0, 80))
        work = str(rng.choice(["Private", "State", "none", "?"], p=[0.45, 0.4, 0.1, 0.05]))
        score = (age - 54) / 36 + (hours - 40) / 40 + (1.5 if work == "State" else -0.8)
        label = "high" if score + rng.normal(0, 0.2) > 0 else "low"
        rows.append([str(age), work, str(hours), f"remark {k}", label])
    return rows


def write_people(path, rows=None, names=True):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([NAMES] * names + (people() if rows is None else rows))
    return path


def people_job(folder, file, *, schema=None, **run):
    own = {"source": "csv", "path": str(file)}
    plain = {
        "job": "people",
        "data": {"source": "people", "nominal_records": 60, "schema": schema or SCHEMA},
        "features": [{"name": "identity"}],
        "train": {"method": "fm", "rounds": 3},
        "privacy": {"epsilon": 10},
        "local_run": {"devices": 5, "simulate": True, "data": own, **run},
    }
    (folder / "people.yaml").write_text(yaml.safe_dump(plain, sort_keys=False))
    return folder / "people.yaml"
