"""What stands behind the names of data and of evaluation, as `methods_about` for learning.

A new entry of a table needs a line here.
"""

from __future__ import annotations

from edgeveil_tools.methods_about import TEXT_001, About

_FOLDER = "the folder of the published files"
_FILE = "a file of the user's"

PARTITIONS = {
    "iid": About("usual practice"),
    "n_class": About("McMahan et al. 2017", "classes_per_device"),
    "dirichlet": About("Yurochkin et al. 2019", "alpha"),
    "quantity_skew": About("Li et al. 2022", "alpha"),
}

SOURCES = {
    "digits": About(
        "Alpaydin and Kaynak 1998, in scikit-learn",
        summary="1,797 handwritten digits of 8×8 pixels.",
    ),
    "mnist": About(
        "LeCun et al. 1998", _FOLDER, summary="70,000 handwritten digits of 28×28 pixels."
    ),
    "emnist": About(
        "Cohen et al. 2017, Balanced",
        _FOLDER,
        summary="131,600 handwritten letters and digits of 28×28 pixels, 47 classes.",
    ),
    "cifar10": About(
        "Krizhevsky 2009, binary version",
        _FOLDER,
        summary="60,000 coloured photographs of 32×32 pixels, 10 classes.",
    ),
    "cifar100": About(
        "Krizhevsky 2009, binary version",
        _FOLDER,
        summary="60,000 coloured photographs of 32×32 pixels, 100 classes.",
    ),
    "npz": About("the user's own data", _FILE, summary="NumPy's arrays x and y."),
    "csv": About(
        "the user's own data",
        _FILE,
        summary="Numbers, one record a line, under a line that names the columns.",
    ),
    "parquet": About(
        "the user's own data",
        f"{_FILE}; pip install 'edgeveil[parquet]'",
        summary="Columns of numbers, one record a row.",
    ),
    "idx": About(
        "the user's own data",
        f"{_FILE} and one of labels",
        summary="Arrays in the format of MNIST.",
    ),
    "images": About(
        "the user's own data",
        "a folder for each of images.classes; pip install 'edgeveil[images]'",
        summary="PNG and JPEG pictures, brought to one size.",
    ),
    "python": About(
        "the user's own code",
        "`python: module:function`, installed",
        summary="What a function returns, two arrays (x, y).",
    ),
}

PROTECTIONS = {
    "LAPLACE": About(
        f"{TEXT_001}, sensitivity 2 in place of 1",
        "laplace_eval",
        "each device's noised softmax",
        "proven",
        "`laplace_eval_sensitivity: 1` is the text's: the guarantee printed is then 2ε",
        "Inferences are noised on the device.",
    ),
    "NOT_ENCRYPT": About(
        TEXT_001,
        "privacy.accept_unproven; owners who accept unprotected inferences",
        "each device's softmax",
        "none",
        summary="Inferences are uploaded as they are.",
    ),
}

EVALUATIONS = {
    "NOT_EVAL": About(TEXT_001, summary="Devices upload no inferences."),
    "SILHOUETTE_SCORE": About("Rousseeuw 1987"),
    "CALINSKI_HARABASZ_SCORE": About("Caliński and Harabasz 1974"),
    "DAVIES_BOULDIN_SCORE": About("Davies and Bouldin 1979"),
}

SILHOUETTES = {
    "sklearn": About("Rousseeuw 1987"),
    "text": About(TEXT_001),
}

LABELS = {
    "argmax": About(TEXT_001, summary="A cluster is all uploads with the same largest entry."),
    "kmeans": About("Lloyd 1982; Arthur and Vassilvitskii 2007", "scikit-learn"),
}

FAMILIES: dict[str, dict[str, About]] = {
    "local_run.partition": PARTITIONS,
    "local_run.data.source": SOURCES,
    "encrypt.privacy_eval_type": PROTECTIONS,
    "unsupervised.eval_type": EVALUATIONS,
    "unsupervised.silhouette": SILHOUETTES,
    "unsupervised.labels": LABELS,
}
