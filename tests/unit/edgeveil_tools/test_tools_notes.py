"""What is told beside figures: scales, settings chosen on the same records, large ε."""

from contextlib import suppress
from pathlib import Path

from edgeveil.errors import ConfigError
from edgeveil.jobs import load_job
from edgeveil_lab.reproduce.run import chosen_note, load_experiment, tuned_rows
from edgeveil_lab.reproduce.run import markdown as reproduced
from edgeveil_tools.local.data import published_largest, scale_notes

MODEL = {
    "job": "scaled",
    "data": {"source": "mnist", "classes": 10, "input_shape": [28, 28], "nominal_records": 20},
    "model": {"name": "mlp"},
    "train": {"method": "sgd", "rounds": 2},
    "privacy": {"accept_unproven": True},
}


def test_no_example_has_values_beyond_its_scale():
    looked_at = 0
    for path in sorted(Path("configs/jobs").glob("*.yaml")):
        with suppress(ConfigError):  # its encoder is made elsewhere
            job = load_job(path)
            assert scale_notes(job, published_largest(job.data.source)) == [], path
            looked_at += 1
    assert looked_at > 30


def test_an_experiment_names_the_rows_whose_settings_were_chosen_on_the_same_images():
    trials = load_experiment("delm-table3").trials
    rows = [{"trial": trial.name, "values": [0.5]} for trial in trials]
    tuned = tuned_rows(rows, trials)
    assert "`fm_1_class`" in tuned and "`fedavg_1_class`" not in tuned
    assert tuned_rows([{**row, "values": []} for row in rows], trials) == []
    content = {
        "experiment": "x", "title": "t", "source": "s", "remark": "r", "quick": False, "rows": [],
        "figure": "accuracy", "failures": [], "chosen": chosen_note(tuned),
    }  # fmt: skip
    assert "features and parameters of `fm_1_class`" in reproduced(content)
    assert "Chosen on" not in reproduced({**content, "chosen": ""})
