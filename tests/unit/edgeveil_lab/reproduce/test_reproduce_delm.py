"""DELM's experiments: the text's figures stand at their rows, and one plays from end to end."""

import json

import pytest

from edgeveil_lab.reproduce import EXPERIMENTS
from edgeveil_lab.reproduce.delm import DEVICES, QUICK_DEVICES, DelmWorkload
from edgeveil_tools import cli

pytestmark = pytest.mark.slow


def claimed(name, quick=False):
    trials = EXPERIMENTS[name].trials(quick)
    return {trial.name: [point.claimed for point in trial.points] for trial in trials}


def test_figure_2_plays_from_end_to_end(tmp_path, capsys):
    command = ["reproduce", "delm-fig2", "--quick", "--rounds", "2", "--json"]
    assert cli.main([*command, "--out", str(tmp_path)]) == 0
    content = json.loads(capsys.readouterr().out)
    rows = {row["trial"]: row for row in content["rows"]}
    assert list(rows) == [
        *("fm", "fedavg", "delm_basic", "ldp_fl", "ldp_fl_a_round"),
        *("delm_ldp_pca", "delm_local_pca"),
    ]
    assert content["failures"] == []
    assert all(len(row["curve"]) == row["rounds"] == 2 for row in rows.values())
    assert rows["fm"]["proven_privacy"].endswith("per record, whole job, proven")
    assert {rows[name]["proven_privacy"] for name in list(rows)[1:]} == {"no proven guarantee"}
    assert rows["fm"]["ours"] > rows["delm_basic"]["ours"]
    assert rows["delm_local_pca"]["claimed"] == 0.871


def test_figure_3_prints_both_figures_of_one_run():
    rows = claimed("delm-fig3")
    assert rows["delm_mnist_eps01_p8_1to2"] == [0.913, 0.827]  # 3(b) and 3(d)
    assert rows["delm_cifar10_eps01_p8_1to2"] == [0.827, 0.827]  # 3(c) and 3(d)
    assert rows["delm_mnist_eps1_p8_1to2"] == [0.981, None]
    assert rows["delm_mnist_eps1_p8_1to10"] == rows["delm_cifar10_eps1_p8_1to10"] == [0.886]


def test_tables_have_the_other_data_sets_rows_too():
    assert claimed("delm-table3")["delm_enhanced_1_class_cifar10"] == [0.842]
    assert claimed("delm-table3")["ldp_fl_a_round_2_class"] == [0.847]
    assert claimed("delm-table4")["secprobe_high"] == [0.714]
    assert claimed("delm-table4")["secprobe_low_cifar100"] == [0.497]
    sources = {trial.source for trial in EXPERIMENTS["delm-table4"].trials(False)}
    assert sources == {"emnist", "cifar100"}


@pytest.mark.parametrize(
    ("quick", "k", "devices"), [(True, 10, QUICK_DEVICES), (False, 50, DEVICES)]
)
def test_a_quick_scene_keeps_the_share_that_counts(quick, k, devices):
    scene = DelmWorkload(quick, "emnist")
    job = scene.job("x", scene.system("delm_enhanced", aggregation=scene.chosen(50)))
    assert job["aggregation"] == {"k": k}
    assert job["local_run"]["devices"] == devices
    assert job["data"]["source"] == ("digits" if quick else "emnist")
