"""A table of windows of eight readings: a line with noise, some out of order."""

import numpy as np
import yaml

NAMES = [f"r{k}" for k in range(8)]
SCHEMA = {
    "origin": "public",
    "label": {"column": "state", "normal": ["ok"], "anomalous": ["leak", "stall"]},
    "columns": [{"name": NAMES, "number": [-2, 2]}],
    "missing": ["?"],
}
KINDS = ("ok", "leak", "stall")


def windows(count=1500, seed=0):
    """Return (readings (n, 8), labels): nine in ten `ok`, a third of all unlabelled."""
    chance = np.random.default_rng(seed)
    t = np.linspace(-1, 1, 8)
    kinds = chance.choice(3, count, p=[0.9, 0.05, 0.05])
    x = chance.normal(0, 0.6, (count, 1)) * t + 0.3 + chance.normal(0, 0.05, (count, 8))
    x += (kinds == 1)[:, None] * 0.35 * np.cos(9 * t) + (kinds == 2)[:, None] * 0.5 * t**2
    labels = ["" if n % 3 == 0 else KINDS[kind] for n, kind in enumerate(kinds)]
    return x, labels


def write_windows(path, count=1500):
    x, labels = windows(count)
    rows = [",".join([*(f"{v:.4f}" for v in row), one]) for row, one in zip(x, labels, strict=True)]
    path.write_text("\n".join([",".join([*NAMES, "state"]), *rows, ""]))


def windows_job(folder, **changes):
    """Write an anomaly-detection job on `windows.csv` in the folder."""
    data, own = {"source": "windows", "schema": SCHEMA}, {"source": "csv", "path": "windows.csv"}
    given = {
        "job": "windows",
        "data": {**data, "nominal_records": 240, "evaluation_share": 0.4},
        "features": [{"name": "identity", "norm": "bounded"}],
        "train": {"method": "pca_residual"},
        "privacy": {"epsilon": 8},
        "federated_evaluation": {"epsilon": 8, "alarm_rate": 0.1},
        "round": {"budget_s": 1, "min_batch": 2},
        "local_run": {"devices": 5, "simulate": True, "data": own},
        **changes,
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(given))
    return path
