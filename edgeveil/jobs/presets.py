"""`preset: NAME` in a job file: a published system's parameters, overridden by the file's own.

Presets give no data and no `privacy.accept_unproven`.
"""

from __future__ import annotations

from typing import Any

from edgeveil.config.explain import Schema
from edgeveil.config.yaml_tree import Path, Problem, Tree
from edgeveil.registry import nearest

KEY = "preset"
_TAGS = ("method", "name")  # a block with another tag replaces the preset's block

_BATCHES = {"local_epochs": 1, "batch_size": 32, "learning_rate": 0.1}
_MLP = {"name": "mlp", "hidden": [128]}
_AT_1 = {"epsilon": 1.0, "delta": 1e-5}
_DELM: dict[str, Any] = {  # ε₁:ε₂ = 1:2, p = 0.5, T = 250
    "features": [
        {"name": "identity"},
        {"name": "ldp_fpca", "keep": 0.5, "share": 1 / 3, "noise": "wishart"},
    ],
    "train": {"method": "fm_paper", "rounds": 250, "local_steps": 1},
    "privacy": _AT_1,
}
# The paper's ε₃ = m·ε for the m = 2 layers of its perceptron.
_CHOSEN = {"name": "min_divergence", "k": 50, "sampling": "exponential", "epsilon_3": 2.0}

# Other keys have a job's defaults: fedavg, silhouettes of 1000 uploads, split shuffles.
PRESETS: dict[str, dict[str, Any]] = {
    "delm_basic": _DELM,
    "delm_enhanced": {**_DELM, "aggregation": _CHOSEN},
    "delm_top_k": {**_DELM, "aggregation": {**_CHOSEN, "sampling": "top_k"}},
    "anonymous_fl": {
        "model": _MLP,
        "train": {"method": "sgd", "rounds": 50, **_BATCHES},
        "update": [
            {"name": "download_random", "share": 0.5},
            {"name": "gradient_gaussian", "clip_norm": 1.0},
            {"name": "upload_top_k", "share": 0.1},
        ],
        "privacy": {"epsilon": 8.0, "delta": 1e-5},
    },
    "laplace_inference": {
        "features": [{"name": "identity"}],
        "train": {"method": "fm"},
        "privacy": {"epsilon": 8.0, "delta": 1e-5},
        "encrypt": {"laplace_eval": {"laplace_eval_eps": 230260.0}, "laplace_eval_sensitivity": 1},
        "unsupervised": {"every_rounds": 1},
    },
    "pso_dp_fl": {
        "model": {"name": "mlp_300_100"},
        "train": {"method": "pso_dp_fl"},
        "privacy": {"epsilon": 8.0, "delta": 1e-5},
    },
    "ldp_fl": {
        "model": _MLP,
        "train": {"method": "sgd", "rounds": 100, **_BATCHES},
        "update": [{"name": "ldp_fl", "composition": "parallel"}],
        "privacy": _AT_1,
    },
    "fedavg": {"model": _MLP, "train": {"method": "sgd", "rounds": 200, **_BATCHES}},
    "fedprox": {
        "model": _MLP,
        "train": {"method": "fedprox", "rounds": 250, **_BATCHES, "mu": 0.01},
    },
    "secprobe": {
        "model": _MLP,
        "train": {"method": "sgd", "rounds": 300, **_BATCHES},
        "proxy": {"shuffle": "whole"},
        "aggregation": {"name": "secprobe", "k": 50, "sampling": "exponential", "epsilon_3": 1.0},
    },
    "stc": {
        "model": _MLP,
        "train": {"method": "sgd", "rounds": 200, **_BATCHES},
        "update": [{"name": "stc", "share": 0.01}],
    },
}


def expand(tree: Tree) -> None:
    """Merge a preset below the file's values; an unknown name becomes a problem."""
    if KEY not in tree.value:
        return
    name, at = tree.value[KEY], tree.line((KEY,))
    if not isinstance(name, str) or name not in PRESETS:
        shown = str(name)[:64] if isinstance(name, (str, int, float)) else "a block or list"
        hint = nearest(shown, list(PRESETS))
        tree.problems.append(Problem((KEY,), at, f"unknown preset '{shown}', {hint}"))
        return
    own = {key: value for key, value in tree.value.items() if key != KEY}
    tree.value = _under(PRESETS[name], own, (), tree, at)


def with_preset(schema: Schema) -> Schema:
    """Return the job's schema with the key; keys that a preset can give are not required."""
    preset = {
        "description": "A published system with parameters for keys that this file omits.",
        "enum": list(PRESETS),
        "type": "string",
    }
    given = {key for name in PRESETS for key in PRESETS[name]}
    return {
        **schema,
        "properties": {**schema["properties"], KEY: preset},
        "required": [key for key in schema["required"] if key not in given],
    }


def _under(preset: Any, own: Any, path: Path, tree: Tree, line: int) -> Any:
    if not isinstance(preset, dict) or not isinstance(own, dict):
        return own
    if any(tag in own and own[tag] != preset.get(tag) for tag in _TAGS):
        return own
    result = dict(own)
    for key, value in preset.items():
        here = (*path, key)
        if key in own:
            result[key] = _under(value, own[key], here, tree, line)
        else:
            result[key] = _copied(value, here, tree, line)
    return result


def _copied(value: Any, path: Path, tree: Tree, line: int) -> Any:
    tree.lines[path] = line
    if isinstance(value, dict):
        return {k: _copied(inner, (*path, k), tree, line) for k, inner in value.items()}
    if isinstance(value, list):
        return [_copied(inner, (*path, n), tree, line) for n, inner in enumerate(value)]
    return value
