"""What stands behind each name that a job file may use: source, needs, what it reveals, status.

The tables of names are elsewhere; here is what `edgeveil methods` says beside each of them. A new
entry of a table needs a line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Privacy = Literal["proven", "claimed", "none"]


@dataclass(frozen=True)
class About:
    """`privacy` is the status of its own release as set by default, None where it makes none.

    `note` says which setting changes that. `summary` is for names without a text of their own.
    """

    source: str
    needs: str = "nothing"
    reveals: str = "nothing of its own"
    privacy: Privacy | None = None
    note: str = ""
    summary: str = ""


DELM = "Cao et al. 2023 (DELM)"
SWARM = "Zhang, Wu and Dong (PSO-DP, text 003)"
TEXT_001 = "protected inference results of horizontal federated learning (text 001)"
ANONYMOUS = "Zhao et al. 2021, anonymous federated learning"
UPDATE = "each device's update, layers shuffled among the devices"
NOISED = "each device's noised update"
PER_DEVICE = "per device; for one record among others at the price of twice the sensitivity"
_FEATURES = "features"
_MODEL = "model"

METHODS = {
    "fm": About(
        "functional mechanism, Zhang et al. 2012; re-expanded, docs/privacy.md; Böhning 1992",
        _FEATURES,
        "noised sums over a device's records",
        "proven",
    ),
    "fm_paper": About(
        f"{DELM}, eq. 1 to 10",
        f"{_FEATURES}; privacy.accept_unproven",
        "weights after steps on noised polynomials",
        "claimed",
    ),
    "sgd": About(
        "McMahan et al. 2017, alg. 1",
        f"{_MODEL}; an update stage that protects, or privacy.accept_unproven",
        UPDATE,
        "none",
        "an update stage may protect it",
    ),
    "fedprox": About(
        "Li et al. 2020",
        f"{_MODEL}; an update stage that protects, or privacy.accept_unproven",
        UPDATE,
        "none",
        "an update stage may protect it",
    ),
    "dp_sgd": About("Abadi et al. 2016, alg. 1", _MODEL, "weights after noised steps", "proven"),
    "output_perturbation": About(
        f"{SWARM}, comparison DP-params; Chaudhuri, Monteleoni, Sarwate 2011",
        f"{_MODEL}; privacy.accept_unproven",
        NOISED,
        "claimed",
    ),
    "pso_dp_sgd": About(
        f"{SWARM}, alg. 1",
        _MODEL,
        "the best of a swarm that took noised steps",
        "proven",
        "selection: unpriced is the text's own, claimed",
    ),
    "gep": About(
        f"Yu, Zhang, Chen, Liu 2021; a comparison of {SWARM}",
        _MODEL,
        "weights after noised steps",
        "proven",
    ),
    "rgp": About(
        f"Yu, Zhang, Chen, Yin, Liu 2021; a comparison of {SWARM}",
        _MODEL,
        "weights after noised steps",
        "proven",
    ),
    "pso_dp_fl": About(
        f"{SWARM}, alg. 2",
        _MODEL,
        "each device's clipped and noised update",
        "proven",
        PER_DEVICE,
    ),
    "noise_only": About("a test of links and load", reveals="nothing", privacy="proven"),
}

STAGES = {
    "download_random": About(
        f"{ANONYMOUS}, λ_d", "to be the first stage; a device's memory", "nothing of its own"
    ),
    "gradient_gaussian": About(ANONYMOUS, "a method without noise", NOISED, "proven", PER_DEVICE),
    "ldp_fl": About(
        "Sun, Qian and Chen 2021 (LDP-FL), alg. 2",
        "a method without noise",
        "every weight as one of two values",
        "proven",
        "per device, any two data sets; `composition: parallel` is claimed",
    ),
    "upload_top_k": About(
        f"{ANONYMOUS}, λ_u",
        "to follow the noise, or privacy.accept_unproven",
        "which values are largest; free after the noise",
    ),
    "stc": About(
        "Sattler et al. 2020, alg. 1 and 2",
        "to follow the noise, or privacy.accept_unproven; a device's memory",
        "which values are largest, with their signs",
    ),
}

_ONE_UPDATE = "a model; proxy.shuffle: whole"
AGGREGATIONS = {
    "fedavg": About("McMahan et al. 2017, with equal weights"),
    "min_divergence": About(
        f"{DELM}, alg. 3, eq. 14 to 16",
        "weights or updates; k",
        "a mean of the chosen uploads",
        "claimed",
        "post-processing where uploads are noised; the ε₃ of its draws is claimed",
    ),
    "secprobe": About(
        f"Zhao et al. 2019 (SecProbe), as {DELM} has it",
        f"{_ONE_UPDATE}; k; test records in the cloud",
        "a mean of the chosen uploads",
        "claimed",
        "post-processing where uploads are noised; the ε₃ of its draws is claimed",
    ),
    "median": About("Yin et al. 2018"),
    "trimmed_mean": About("Yin et al. 2018"),
    "krum": About("Blanchard et al. 2017", _ONE_UPDATE),
}

_PICTURES = "records of [channels, height, width] or [height, width]"
MODELS = {
    "mlp": About(f"{DELM}, section 3.3"),
    "mlp_300_100": About(f"{SWARM}; LeCun et al. 1998"),
    "cnn": About(SWARM, _PICTURES),
    "lenet": About("LeCun et al. 1998 (LeNet-5)", _PICTURES),
    "alexnet": About("Krizhevsky 2014, for pictures of 32×32", _PICTURES),
    "resnet20": About(f"He et al. 2016, section 4.2; {SWARM}", _PICTURES),
    "python": About("the user's own code", "a function that owners have installed themselves"),
}

_PCA = "to be the last of the features"
FEATURES = {
    "identity": About("the records themselves"),
    "random": About("Rahimi and Recht 2008; Cho and Saul 2009"),
    "gabor": About("Bruna and Mallat 2013, fixed scattering", "pictures"),
    "onnx": About("any public extractor, as a file", "an ONNX file that owners allow"),
    "ldp_fpca": About(
        f"{DELM}, alg. 2; Dwork et al. 2014 (Analyze Gauss)",
        _PCA,
        "each device's noised covariance",
        "proven",
        "`noise: wishart` is claimed",
        "One basis, from the average of the devices' noised covariances.",
    ),
    "ldp_pca": About(
        f"{DELM}, comparison LDP-PCA",
        _PCA,
        "nothing beside what is learned on the basis",
        "proven",
        "`noise: wishart` is claimed",
        "Each device takes the basis of its own noised covariance.",
    ),
    "local_pca": About(
        f"{DELM}, comparison local PCA",
        f"{_PCA}; privacy.accept_unproven",
        "the un-noised basis, through what is learned on it",
        "claimed",
        summary="Each device takes its own basis, without noise.",
    ),
}

MECHANISMS = {
    "gaussian": About(
        "Dong, Roth, Su 2022; Canonne et al. 2020",
        "integers of bounded L2 norm",
        "their sum, noised",
        "proven",
    ),
    "laplace": About(
        "Dwork et al. 2006; Ghosh et al. 2012",
        "integers of bounded L1 norm",
        "their sum, noised",
        "proven",
    ),
    "softmax": About(
        f"{TEXT_001}, sensitivity 2 in place of 1",
        "encrypt.laplace_eval",
        "a device's noised softmax",
        "proven",
    ),
    "two_value": About(
        "Duchi et al. 2018; Sun et al. 2021", "values in [-1, 1]", "two values", "proven"
    ),
    "exponential": About(
        "McSherry and Talwar 2007", "integer scores of bounded sensitivity", "an index", "proven"
    ),
    "report_noisy_max": About(
        "McKenna and Sheldon 2020; Ding et al. 2021",
        "integer scores of bounded sensitivity",
        "an index",
        "proven",
    ),
}

SHUFFLES = {
    "split": About(
        f"{DELM}, split and shuffle; clone bound, Feldman, McMillan, Talwar 2021",
        reveals="layers, each in an order of its own",
        summary="Each layer's segments are permuted alone.",
    ),
    "whole": About(
        "Bittau et al. 2017",
        reveals="whole updates in random order",
        summary="Updates are permuted; a device's update stays one.",
    ),
    "none": About(
        "no protection of the text's",
        "policy.accept_unshuffled",
        "which layers came together, and the order of arrival",
        summary="Uploads keep the order in which they came.",
    ),
}

FAMILIES: dict[str, dict[str, About]] = {
    "train.method": METHODS,
    "update": STAGES,
    "aggregation": AGGREGATIONS,
    "model": MODELS,
    "features": FEATURES,
    "mechanism": MECHANISMS,
    "proxy.shuffle": SHUFFLES,
}
