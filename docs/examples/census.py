"""Write `census.csv`, made-up people in the form of UCI Adult, to ask statistics of.

python docs/examples/census.py data/census.csv
"""

import csv
import sys
from pathlib import Path

import numpy as np

CATEGORIES = {  # names and their shares
    "workclass": {"private": 70, "self-employed": 11, "government": 13, "without-pay": 0.3},
    "education": {"school": 13, "high-school": 32, "college": 30, "bachelor": 17, "higher": 8},
    "marital": {"married": 47, "never": 33, "divorced": 14, "separated": 3, "widowed": 3},
    "occupation": {"craft": 25, "office": 25, "service": 22, "professional": 25, "military": 0.1},
    "relationship": {"husband": 40, "not-in-family": 26, "child": 16, "wife": 5, "other": 13},
    "race": {"white": 85, "black": 10, "asian": 3, "native": 1, "other": 1},
    "sex": {"female": 33, "male": 67},
    "country": {"US": 90, "MX": 2.0, "PH": 1.5, "DE": 1.4, "CA": 1.2, "IN": 1.1, "CU": 0.5},
}
HEADER = (
    *("age", "weight", "years", "gain", "loss", "hours"),
    *CATEGORIES,
    "income",
)


def people(count, seed=0):
    """Yield one row of text for each person."""
    rng = np.random.default_rng(seed)
    age = np.clip(17 + rng.gamma(2.5, 9, count), 17, 90).round()
    weight = rng.lognormal(12, 0.5, count).round()
    years = np.clip(rng.normal(10, 2.6, count), 1, 16).round()
    gain = np.where(rng.random(count) < 0.08, rng.lognormal(8.5, 1, count), 0).round()
    loss = np.where(rng.random(count) < 0.05, rng.normal(1900, 300, count), 0).round()
    hours = np.clip(rng.normal(40, 12, count) - np.abs(age - 45) / 5, 1, 99).round()
    named = {
        name: rng.choice(list(of), count, p=np.array(list(of.values())) / sum(of.values()))
        for name, of in CATEGORIES.items()
    }
    unknown = rng.random((2, count)) < 0.06
    for name, gaps in zip(("workclass", "occupation"), unknown, strict=True):
        named[name] = np.where(gaps, "?", named[name])
    logit = 0.35 * (years - 10) + 0.03 * (age - 38) + 1.2 * (named["marital"] == "married") - 2
    rich = np.where(rng.random(count) < 1 / (1 + np.exp(-logit)), ">50K", "<=50K")
    numbers = [column.astype(int).tolist() for column in (age, weight, years, gain, loss, hours)]
    yield from zip(*numbers, *named.values(), rich, strict=True)


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "census.csv")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(HEADER)
        rows.writerows(people(int(sys.argv[2]) if len(sys.argv) > 2 else 30_000))
