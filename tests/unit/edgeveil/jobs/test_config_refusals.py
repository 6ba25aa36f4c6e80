"""Jobs that could not work: each told when the file loads, with file, line, key and the way out."""

import re

import pytest

from edgeveil.errors import ConfigError
from edgeveil_tools.local.local_run import load_local_job

HEAD = "job: refused\ndata: {source: digits, classes: 10, input_shape: [64], nominal_records: 64}\n"
OPEN = "privacy: {epsilon: 8, accept_unproven: true}\n"
CLOSED = "privacy: {epsilon: 8}\n"
MLP = "model: {name: mlp}\n"
SGD = "train: {method: sgd, rounds: 2}\n"
FM = "train: {method: fm, rounds: 2}\n"
IDENTITY = "features: [{name: identity}]\n"
WHOLE = "proxy: {shuffle: whole}\n"
TRAINED = OPEN + MLP + SGD
SUMMED = CLOSED + FM + IDENTITY
PCA = "features: [{name: identity}, {name: ldp_fpca, keep: 0.5}]\n"


def run(devices=20, **more):
    extra = "".join(f", {key}: {value}" for key, value in more.items())
    return f"local_run: {{devices: {devices}{extra}}}\n"


CASES = {
    # --- more uploads than come -------------------------------------------------------------
    "k of min_divergence": (
        TRAINED + "aggregation: {name: min_divergence, k: 21}\n" + run(),
        "aggregation.k: 'min_divergence' needs 21 uploads as it is set, and at most 20",
    ),
    "k of secprobe, of the selected": (
        TRAINED + WHOLE + "selection: {devices: 9}\naggregation: {name: secprobe, k: 10}\n",
        "aggregation.k: 'secprobe' needs 10 uploads as it is set, and at most 9",
    ),
    "k of krum beside the malicious": (
        TRAINED + WHOLE + "aggregation: {name: krum, k: 18, malicious: 3}\n" + run(),
        "aggregation.k: 'krum' needs 21 uploads",
    ),
    "more malicious than krum bears": (
        TRAINED + WHOLE + "aggregation: {name: krum, malicious: 9}\n" + run(),
        "aggregation.malicious: 'krum' needs 21 uploads",
    ),
    "devices that do not train": (
        TRAINED + "aggregation: {name: min_divergence, k: 20}\n" + run(infer_only=1),
        "aggregation.k: 'min_divergence' needs 20 uploads as it is set, and at most 19",
    ),
    "a batch of more than are played": (
        TRAINED + "round: {min_batch: 21}\n" + run(),
        "round.min_batch: a batch needs 21 uploads",
    ),
    "a batch of more than 50 times 1.1 as it is written": (
        TRAINED + "selection: {devices: 50, over_select: 1.1}\nround: {min_batch: 56}\n",
        "round.min_batch: a batch needs 56 uploads (round.min_batch) but only 55 devices are",
    ),
    "a rule's k of more than 50 times 1.1": (
        TRAINED
        + WHOLE
        + "selection: {devices: 50, over_select: 1.1}\n"
        + "aggregation: {name: secprobe, k: 56}\n",
        "aggregation.k: 'secprobe' needs 56 uploads as it is set, and at most 55",
    ),
    "records to score on": (
        TRAINED + WHOLE + "aggregation: {name: secprobe, k: 5}\n" + run(test_records=100),
        "local_run.test_records: 200 records score uploads and others test the model",
    ),
    # --- rules and what they see ------------------------------------------------------------
    "krum of shuffled layers": (
        TRAINED + "aggregation: {name: krum}\n",
        "aggregation.name: 'krum' compares whole updates, but the proxy shuffles layer by layer",
    ),
    "secprobe of shuffled layers": (
        TRAINED + "proxy: {shuffle: split}\naggregation: {name: secprobe, k: 5}\n",
        "aggregation.name: 'secprobe' compares whole updates",
    ),
    "min_divergence of sums": (
        SUMMED + "aggregation: {name: min_divergence, k: 5}\n",
        "aggregation.name: 'min_divergence' compares updates of weights, and is undefined",
    ),
    "krum of the text's functional mechanism": (
        OPEN + IDENTITY + "train: {method: fm_paper, rounds: 2}\naggregation: {name: krum}\n",
        "aggregation.name: 'krum' compares whole updates, but the proxy shuffles layer by layer",
    ),
    "whole updates where there are none": (
        SUMMED + WHOLE,
        "proxy.shuffle: is for methods that train a whole model, 'fm' does not",
    ),
    "trimmed away altogether": (
        TRAINED + "aggregation: {name: trimmed_mean, share: 0.5}\n",
        "aggregation.share: must be in [0, 0.5), got 0.5",
    ),
    # --- methods and models -----------------------------------------------------------------
    "a model that fm does not train": (
        SUMMED + MLP,
        "model: is for methods that train a whole model, 'fm' does not",
    ),
    "stages on sums": (
        SUMMED + "update: [{name: upload_top_k}]\n",
        "update: is for methods that train a whole model",
    ),
    "no model": (OPEN + SGD, "train.method: method 'sgd' trains a model and none is named"),
    "no features": (CLOSED + FM, "train.method: method 'fm' learns on public features"),
    "a PCA before a whole model": (
        TRAINED + PCA,
        "features: a PCA takes exchanges of its own, which method 'sgd' has not",
    ),
    "pictures that are none": (
        OPEN + SGD + "model: {name: cnn}\n",
        "model: records of shape [64] are no pictures",
    ),
    "pictures for a table's features": (
        CLOSED + FM + "features: [{name: gabor}]\n",
        "features[0]: ",
    ),
    # --- noise ------------------------------------------------------------------------------
    "nothing protects": (
        CLOSED + MLP + SGD,
        "train: no guarantee is proven for: update without noise",
    ),
    "a choice before the noise": (
        CLOSED + MLP + SGD + "update: [{name: upload_top_k}, {name: gradient_gaussian}]\n",
        "update[0]: 'upload_top_k' chooses values before 'gradient_gaussian' adds noise",
    ),
    "noise twice": (
        CLOSED + MLP + "train: {method: dp_sgd, rounds: 2}\nupdate: [{name: gradient_gaussian}]\n",
        "update: method 'dp_sgd' adds noise of its own",
    ),
    "a method that is claimed": (
        CLOSED + IDENTITY + "train: {method: fm_paper, rounds: 2}\n",
        "features: no guarantee is proven for: perturbed polynomial",
    ),
    "a delta that protects nobody": (
        "privacy: {epsilon: 8, delta: 0.1}\n" + FM + IDENTITY,
        "privacy.delta: 0.1 is not below 1 / data.nominal_records",
    ),
    "an epsilon that no noise meets": (
        "privacy: {epsilon: 1.0e-9}\n" + FM + IDENTITY,
        "privacy.epsilon: ",
    ),
    # --- the fleet --------------------------------------------------------------------------
    "more classes than there are": (
        TRAINED + run(partition="{kind: n_class, classes_per_device: 11}"),
        "local_run.partition.classes_per_device: 11 is more than the 10 classes",
    ),
    "half of low quality": (
        TRAINED + run(partition="{lq_user: 0.3}"),
        "local_run.partition.lq_user: disturbs nothing while lq_data is 0",
    ),
    "a key of another kind of partition": (
        TRAINED + run(partition="{kind: iid, classes_per_device: 1}"),
        "local_run.partition.classes_per_device: is read by n_class alone, and the kind is iid",
    ),
    "the evenness of a partition by classes": (
        TRAINED + run(partition="{kind: n_class, alpha: 0.1}"),
        "local_run.partition.alpha: is read by dirichlet and quantity_skew alone",
    ),
    "a preset without its consent": (
        "preset: delm_enhanced\n",
        "features: no guarantee is proven for: covariance with Wishart noise",
    ),
    "a preset of more devices than are played": (
        "preset: delm_enhanced\nprivacy: {accept_unproven: true}\n" + run(),
        "aggregation.k: 'min_divergence' needs 50 uploads as it is set, and at most 20",
    ),
}


@pytest.mark.parametrize(("text", "said"), CASES.values(), ids=CASES)
def test_what_cannot_work_is_refused_with_file_line_key_and_reason(tmp_path, text, said):
    path = tmp_path / "job.yaml"
    path.write_text(HEAD + text)
    with pytest.raises(ConfigError) as caught:
        load_local_job(path)
    (problem,) = caught.value.problems
    place, words = problem.split(" ", 1)
    assert words.startswith(said)
    key = re.match(r"\w+", words)[0]
    starts = [line.partition(":")[0] for line in path.read_text().splitlines()]
    assert place == f"{path}:{1 + starts.index(key if key in starts else 'preset')}"
