"""Jobs that could not work: each refused when the file loads, with file, line and key."""

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
FM_PAPER = "train: {method: fm_paper, rounds: 2}\n"
IDENTITY = "features: [{name: identity}]\n"
WHOLE = "proxy: {shuffle: whole}\n"
TRAINED = OPEN + MLP + SGD
SUMMED = CLOSED + FM + IDENTITY
PCA = "features: [{name: identity}, {name: ldp_fpca, keep: 0.5}]\n"
LOCAL_PCA, LDP_PCA = (
    f"features: [{{name: identity}}, {{name: {n}}}]\n" for n in ("local_pca", "ldp_pca")
)
LAPLACE = "train: {method: fm, rounds: 2, noise: laplace}\n"
NINE, OF_55 = "selection: {devices: 9}\n", "selection: {devices: 50, over_select: 1.1}\n"
TOP, GAUSSIAN = "{name: upload_top_k}", "{name: gradient_gaussian}"
WISHART = PCA.replace("0.5", "0.5, noise: wishart")
PARTITION, EACH = "local_run.partition", "classes_per_device: "
SUMS, ADAM = "train: {method: dp_sgd_sums, rounds: 2}\n", ", optimizer: {name: adam}}"
RANDOM = "update: [{name: download_random}]\n"
SECURE = "aggregation: {name: fedavg, secure: true}\n"
DELM, EVALUATED = "preset: delm_enhanced\n", "federated_evaluation: {epsilon: 1}\n"


def run(devices=20, **more):
    extra = "".join(f", {key}: {value}" for key, value in more.items())
    return f"local_run: {{devices: {devices}{extra}}}\n"


def rule(name, **more):
    extra = "".join(f", {key}: {value}" for key, value in more.items())
    return f"aggregation: {{name: {name}{extra}}}\n"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        # more uploads than come
        ("aggregation.k: .* needs 21 .* 20", TRAINED + rule("min_divergence", k=21) + run()),
        ("aggregation.k: .* 21 up", TRAINED + WHOLE + rule("krum", k=18, malicious=3) + run()),
        ("aggregation.malicious: .* 21 up", TRAINED + WHOLE + rule("krum", malicious=9) + run()),
        ("aggregation.k: .* 20 .* 19", TRAINED + rule("min_divergence", k=20) + run(infer_only=1)),
        ("round.min_batch: .* 56 .* only 55", TRAINED + OF_55 + "round: {min_batch: 56}\n"),
        ("local_run.test_records", TRAINED + WHOLE + rule("secprobe", k=5) + run(test_records=100)),
        # rules and what they see
        ("aggregation.name: .* layer by layer", TRAINED + rule("krum")),
        ("aggregation.name: .* undefined", SUMMED + rule("min_divergence", k=5)),
        ("aggregation.name: .* layer by layer", OPEN + IDENTITY + FM_PAPER + rule("krum")),
        ("proxy.shuffle", SUMMED + WHOLE),
        ("aggregation.share", TRAINED + rule("trimmed_mean", share=0.5)),
        # methods and models
        ("model", SUMMED + MLP),
        ("update", SUMMED + f"update: [{TOP}]\n"),
        ("train.method", OPEN + SGD),
        ("train.method", CLOSED + FM),
        ("features: a PCA", TRAINED + PCA),
        ("model: records of shape", OPEN + SGD + "model: {name: cnn}\n"),
        (r"features\[0\]", CLOSED + FM + "features: [{name: gabor}]\n"),
        ("train.method: .* sums over devices", CLOSED + MLP + SUMS),
        ("update: .* no stage", CLOSED + MLP + SUMS + SECURE + RANDOM),
        ("train.optimizer: the cloud", CLOSED + MLP + SECURE + SUMS.replace("}", ADAM)),
        # noise
        ("train: no guarantee is proven", CLOSED + MLP + SGD),
        (
            r"update\[0\]: 'upload_top_k' chooses",
            CLOSED + MLP + SGD + f"update: [{TOP}, {GAUSSIAN}]\n",
        ),
        ("features: no guarantee is proven", CLOSED + IDENTITY + FM_PAPER),
        ("privacy.delta: .* no protection", "privacy: {epsilon: 8, delta: 0.1}\n" + FM + IDENTITY),
        ("features: no guarantee is proven", CLOSED + FM + WISHART),
        ("features: no guarantee is proven", CLOSED + FM + LOCAL_PCA),
        ("federated_evaluation: .* no basis", OPEN + FM + LOCAL_PCA + EVALUATED),
        ("selection.devices: .* first answer", CLOSED + FM + LDP_PCA + NINE),
        ("privacy.epsilon: .* cannot be met", "privacy: {epsilon: 0.00001}\n" + LAPLACE + IDENTITY),
        # the fleet
        (
            f"{PARTITION}.classes_per_device: 11",
            TRAINED + run(partition=f"{{kind: n_class, {EACH}11}}"),
        ),
        (f"{PARTITION}.classes_per_device", TRAINED + run(partition=f"{{kind: iid, {EACH}1}}")),
        ("local_run.partition.alpha", TRAINED + run(partition="{kind: n_class, alpha: 0.1}")),
        ("aggregation.k: .* needs 50 .* 20", DELM + "privacy: {accept_unproven: true}\n" + run()),
    ],
)
def test_what_cannot_work_is_refused_with_file_line_key_and_reason(tmp_path, text, message):
    path = tmp_path / "job.yaml"
    path.write_text(HEAD + text)
    with pytest.raises(ConfigError) as caught:
        load_local_job(path)
    (problem,) = caught.value.problems
    place, words = problem.split(" ", 1)
    assert re.match(message, words), words
    key = re.match(r"\w+", words)[0]
    starts = [line.partition(":")[0] for line in path.read_text().splitlines()]
    assert place == f"{path}:{1 + starts.index(key if key in starts else 'preset')}"
