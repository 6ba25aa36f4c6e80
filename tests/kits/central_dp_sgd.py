"""Central DP-SGD of a `dp_sgd_sums` job: a trusted party with all records, in plain torch.

    python -m tests.kits.central_dp_sgd JOB.yaml [DATA] [--seed N] [--set KEY=VALUE] [--held-back]

Network, records, sampling, clip, rate, steps and noise multiplier are the job's; gradients, sums
and noise are float32. `--held-back` tests on the last sixth of the training records instead of the
test records, to choose settings."""

import argparse
import json
import time

import numpy as np
import torch
import yaml

from edgeveil.data.records import Records
from edgeveil.jobs import compile_job
from edgeveil.parts.methods.dp_sgd import record_gradients
from edgeveil.parts.round import PlannedRound
from edgeveil.privacy.events import as_summed
from edgeveil_tools.local.data import dealt, held
from edgeveil_tools.local.job import local_job

CHUNK = 128


def trained(plan, records, seed, devices, multiplier):
    """Return the weights after all steps; `multiplier` is σ over the clip norm."""
    p, network = plan.job.train, plan.context.network
    chance, noise = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    weights = {name: torch.tensor(array) for name, array in network.initial().items()}
    gradients = record_gradients(network, p)
    x, y = torch.as_tensor(records.x), torch.as_tensor(records.y)
    batch = p.sampling_rate * plan.context.nominal_records * devices
    for number in range(1, p.rounds + 1):
        chosen = np.flatnonzero(chance.random(len(y)) < p.sampling_rate)
        total = {name: torch.zeros_like(value) for name, value in weights.items()}
        for first in range(0, len(chosen), CHUNK):
            at = torch.as_tensor(chosen[first : first + CHUNK])
            found = gradients(weights, x[at], y[at])
            norms = torch.stack([one.flatten(1).norm(dim=1) for one in found.values()]).norm(dim=0)
            factors = (p.clip_norm / norms).clamp(max=1)
            for name, one in found.items():
                total[name] += torch.tensordot(factors, one, 1)
        rate = p.rate(PlannedRound(number, "train", number)) / batch
        for name, value in weights.items():
            drawn = torch.randn(value.shape, generator=noise) * (multiplier * p.clip_norm)
            value -= rate * (total[name] + drawn)
    return weights


def accuracy(network, weights, records):
    with torch.no_grad():
        logits = [network.logits(weights, part) for part in torch.as_tensor(records.x).split(1000)]
    return float((torch.cat(logits).argmax(1).numpy() == records.y).mean())


def main():
    asked = argparse.ArgumentParser()
    asked.add_argument("job")
    asked.add_argument("data", nargs="?")
    asked.add_argument("--seed", type=int, default=7)
    asked.add_argument("--set", action="append", default=[])
    asked.add_argument("--held-back", action="store_true")
    given = asked.parse_args()
    settings = tuple(
        (key, yaml.safe_load(value)) for key, value in (o.split("=") for o in given.set)
    )
    job, run = local_job(given.job, {"data": given.data, "seed": given.seed, "settings": settings})
    plan = compile_job(job)
    (event,) = map(as_summed, plan.device.price(plan.planned[0]))
    (pool, _), test = dealt(job, run), held(job, run)
    if given.held_back:
        least = len(pool) * 5 // 6
        test = Records(pool.x[least:], pool.y[least:])
        pool = Records(pool.x[:least], pool.y[:least])
    begun_s = time.monotonic()
    multiplier = event.event.noise_multiplier
    weights = trained(plan, pool, given.seed, run.devices, multiplier)
    print(
        json.dumps(
            {
                "accuracy": accuracy(plan.context.network, weights, test),
                "epsilon": plan.quote().training.epsilon,
                "noise_multiplier": multiplier,
                "records": len(pool),
                "time_s": time.monotonic() - begun_s,
            }
        )
    )


if __name__ == "__main__":
    main()
