"""What stands behind the names of presets, as `methods_about` for their parts."""

from __future__ import annotations

from edgeveil_tools.methods_about import (
    ANONYMOUS,
    DELM,
    NOISED,
    PER_DEVICE,
    SWARM,
    TEXT_001,
    UPDATE,
    About,
)

_POLICY = "privacy.accept_unproven; owners who allow it"
_OPEN = "privacy.accept_unproven; owners who accept unprotected updates"
_DELM_NOTE = "`fm` is the proven relative"
PRESETS = {
    "delm_basic": About(
        f"{DELM}, basic scheme",
        _POLICY,
        "noised covariances; weights after steps on noised polynomials",
        "claimed",
        _DELM_NOTE,
        "Functional mechanism on a federated PCA; ε₁:ε₂ = 1:2, p = 0.5, T = 250.",
    ),
    "delm_enhanced": About(
        f"{DELM}, enhanced scheme",
        f"{_POLICY}; 50 devices",
        "noised covariances; weights after steps on noised polynomials",
        "claimed",
        _DELM_NOTE,
        "delm_basic with 50 uploads a layer, drawn by divergence; ε₃ = 2.",
    ),
    "delm_top_k": About(
        f"{DELM}, for trusted users",
        f"{_POLICY}; 50 devices",
        "noised covariances; weights after steps on noised polynomials",
        "claimed",
        _DELM_NOTE,
        "delm_basic with the 50 uploads a layer that diverge least.",
    ),
    "anonymous_fl": About(
        ANONYMOUS,
        "owners who allow sgd",
        NOISED,
        "proven",
        f"the clip is ours: the text bounds no update; {PER_DEVICE}",
        "Random download share, Gaussian noise on the update, largest values uploaded.",
    ),
    "laplace_inference": About(
        TEXT_001,
        "owners whose max_inference_epsilon allows it",
        "each device's noised softmax",
        "proven",
        "the text's sensitivity 1 is kept, so the guarantee printed is 2ε",
        "Silhouette score of noised inferences each round, ε = 230260; trained by fm.",
    ),
    "pso_dp_fl": About(
        f"{SWARM}, alg. 2",
        "owners who allow pso_dp_fl",
        "each device's clipped and noised update",
        "proven",
        PER_DEVICE,
        "A local swarm of N = 3 particles, w = 0.1; one clip and noise on the update.",
    ),
    "ldp_fl": About(
        "Sun, Qian and Chen 2021 (LDP-FL)",
        _POLICY,
        "every weight as one of two values",
        "claimed",
        "`composition: sequential` is proven",
        "FedAvg whose weights travel as two values, ε counted once for all of them.",
    ),
    "fedavg": About(
        "McMahan et al. 2017", _OPEN, UPDATE, "none", "", "FedAvg without noise: a yardstick."
    ),
    "fedprox": About(
        "Li et al. 2020", _OPEN, UPDATE, "none", "", "FedProx, μ = 0.01, without noise."
    ),
    "secprobe": About(
        f"Zhao et al. 2019 (SecProbe), as {DELM} has it",
        f"{_OPEN}; 50 devices",
        "whole updates in random order",
        "none",
        "",
        "FedAvg over 50 updates that do well on the cloud's records, drawn at ε₃ = 1.",
    ),
    "stc": About(
        "Sattler et al. 2020",
        _OPEN,
        "signs and places of each update's largest values",
        "none",
        "",
        "FedAvg of sparse ternary updates, 1 % of the values, with error feedback.",
    ),
}
