"""The first job that a newcomer runs protects what it learns from, says so shortly, and learns."""

from pathlib import Path

from edgeveil.evaluation.clustering import SILHOUETTE
from edgeveil.jobs import compile_job, load_job

JOBS = Path(__file__).parents[3] / "configs" / "jobs"
FIRST = JOBS / "quickstart.yaml"


def test_it_shows_the_whole_mission_at_guarantees_that_protect():
    job = load_job(FIRST)
    assert (job.train.method, job.privacy.noise) == ("fm", "shared")
    assert job.aggregation.secure
    assert (job.encrypt.privacy_eval_type, job.unsupervised.eval_type) == ("LAPLACE", SILHOUETTE)
    quote = compile_job(job).quote()
    for one in (quote.training, quote.inference):
        assert one.proven
        assert 0 < one.record_epsilon <= 2
    assert quote.training.unit == "record"
    assert quote.inference.unit == "device"
