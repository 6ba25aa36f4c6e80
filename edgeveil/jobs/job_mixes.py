"""Values of a job that are fine alone and impossible together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgeveil.errors import DataError, PrivacyError
from edgeveil.jobs.job_aggregation import aggregation_mixes
from edgeveil.jobs.job_updates import update_mixes
from edgeveil.jobs.local_run_mixes import policy_mixes, run_mixes, shape_mixes
from edgeveil.parts.features import PcaParameters, build_features, projection_of
from edgeveil.privacy.guarantee import up
from edgeveil.privacy.moments import MomentsAccountant
from edgeveil.settings.base import Mix
from edgeveil.settings.schema_walk import number

if TYPE_CHECKING:
    from edgeveil.jobs.job import Job
    from edgeveil.plan import JobPlan

RECORD_VALUES = 1 << 24
UPLOAD_VALUES = 1 << 18  # of one per_sample upload: 2 MiB


def job_mixes(job: Job) -> Iterator[Mix]:
    """All impossible mixes of a job whose single values are valid."""
    found = list(_mixes(job))
    yield from found
    if not found and job.local_run is not None:
        yield from policy_mixes(job, job.local_run)


def _mixes(job: Job) -> Iterator[Mix]:
    yield from _privacy(job)
    yield from _evaluation(job)
    yield from _fleet(job)
    yield from _participations(job)
    yield from _budget(job)
    if job.local_run is not None:
        yield from run_mixes(job, job.local_run)
    if math.prod(job.data.input_shape) > RECORD_VALUES:
        yield Mix(
            ("data.input_shape",),
            f"one record would hold more than {RECORD_VALUES} values; make it smaller",
        )
    else:
        wrong = list(shape_mixes(job)) or list(_features(job)) or list(update_mixes(job))
        yield from wrong or _own_bases(job)
        yield from wrong or _prices(job)


def _privacy(job: Job) -> Iterator[Mix]:
    bound = 1 / job.data.nominal_records
    if job.privacy.delta >= bound:
        yield Mix(
            ("privacy.delta", "data.nominal_records"),
            f"{number(job.privacy.delta)} is not below 1 / data.nominal_records = "
            f"{number(bound)}, so publishing one whole record would satisfy it and it protects "
            f"nobody; set for example {number(bound / 1000)}",
        )
    limit = job.privacy.max_participations
    if limit is not None and limit > job.rounds:
        yield Mix(
            ("privacy.max_participations", "train.rounds"),
            f"{limit} is more than the {job.rounds} rounds of the job, so noise would be added "
            f"for rounds that never come; set at most {job.rounds}, or leave it out",
        )


def _budget(job: Job) -> Iterator[Mix]:
    closes_s = job.round.deadline_s
    if job.round.time_budget_s >= closes_s:
        yield Mix(
            ("round.budget_s", "round.deadline_s"),
            f"answers leave up to {number(job.round.time_budget_s)} s after the package, but the "
            f"round closes {number(closes_s)} s after the broadcast; set at most "
            f"{number(closes_s / 2)}, or a later deadline_s",
        )


def _features(job: Job) -> Iterator[Mix]:
    """Maps that do not take the job's records, and a PCA that is not the one last entry."""
    last = len(job.features) - 1
    for index, entry in enumerate(job.features):
        if isinstance(entry, PcaParameters):
            if index == 0 or index != last:
                yield Mix(
                    (f"features.{index}",),
                    f"{entry.name} projects what the maps before it give; make it the "
                    "last of the features, after at least one map, and the only PCA",
                )
            continue
        try:
            build_features([entry]).output_dim(job.data.input_shape)
        except DataError as error:
            yield Mix((f"features.{index}", "data.input_shape"), f"{error.what}; {error.fix}")


def _evaluation(job: Job) -> Iterator[Mix]:
    every = job.infer_every
    if not every:
        return
    yield from _uploads(job)
    if every > job.rounds:
        yield Mix(
            ("unsupervised.every_rounds", "train.rounds", "unsupervised.eval_type"),
            f"{every} is more than the {job.rounds} rounds of the job, so devices would never be "
            f"evaluated; set at most {job.rounds}, or 0 for never",
        )
    if job.data.evaluation_share == 0:
        yield Mix(
            ("data.evaluation_share", "unsupervised.every_rounds", "unsupervised.eval_type"),
            "devices are to be evaluated but keep no records apart for it; set for example 0.1, "
            "or unsupervised.every_rounds to 0",
        )
    if job.encrypt.privacy_eval_type == "LAPLACE" and job.encrypt.laplace_eval is None:
        yield Mix(
            ("encrypt.laplace_eval", "encrypt.privacy_eval_type", "unsupervised"),
            "LAPLACE needs laplace_eval.laplace_eval_eps, the ε of one evaluation round; "
            "add for example `laplace_eval: {laplace_eval_eps: 20}`",
        )
    if job.encrypt.privacy_eval_type == "NOT_ENCRYPT" and not job.privacy.accept_unproven:
        yield Mix(
            ("encrypt.privacy_eval_type", "privacy.accept_unproven", "unsupervised"),
            "NOT_ENCRYPT uploads inferences without noise, so no guarantee holds; use LAPLACE, "
            "or set privacy.accept_unproven to true",
        )


def _uploads(job: Job) -> Iterator[Mix]:
    wanted = job.unsupervised
    values = wanted.samples_per_device * job.data.classes
    if wanted.upload == "per_sample" and values > UPLOAD_VALUES:
        yield Mix(
            ("unsupervised.samples_per_device", "data.classes", "unsupervised.upload"),
            f"{wanted.samples_per_device} rows of {job.data.classes} classes are {values} values "
            f"a device, more than {UPLOAD_VALUES}; set at most "
            f"{UPLOAD_VALUES // job.data.classes} samples, or upload: mean",
        )
    if wanted.silhouette == "text" and wanted.eval_type != "SILHOUETTE_SCORE":
        yield Mix(
            ("unsupervised.silhouette", "unsupervised.eval_type"),
            f"the text's silhouette is asked for, but {wanted.eval_type} is no silhouette; set "
            "eval_type to SILHOUETTE_SCORE, or leave silhouette out",
        )


def _fleet(job: Job) -> Iterator[Mix]:
    wanted = job.selection.devices
    if wanted == "all":
        return
    selected = math.ceil(wanted * job.selection.over_select)
    if job.round.min_batch > selected:
        yield Mix(
            ("round.min_batch", "selection.devices", "selection.over_select"),
            f"a batch needs {job.round.min_batch} uploads (round.min_batch) but only {selected} "
            "devices are selected, so no round could ever close; raise selection.devices or "
            "lower round.min_batch",
        )


def _participations(job: Job) -> Iterator[Mix]:
    limit, wanted, run = job.privacy.max_participations, job.selection.devices, job.local_run
    if limit is None or limit >= job.rounds:
        return
    if wanted != "all":
        selected = math.ceil(wanted * job.selection.over_select)
        if run is None or selected < run.devices:
            return
    yield Mix(
        ("privacy.max_participations", "selection.devices", "train.rounds", "local_run.devices"),
        f"every device is selected in each of the {job.rounds} rounds but may answer only "
        f"{limit} of them, so the job would fail after round {limit}; select fewer devices a "
        f"round (selection.devices), or set at least {job.rounds}",
    )


def _prices(job: Job) -> Iterator[Mix]:
    """Budgets that no noise of this version meets: told now, not by devices in the first round."""
    from edgeveil.plan import JobPlan  # builds on the configuration

    plan = JobPlan(job)
    if job.privacy.epsilon is None and _adds_noise(plan):
        yield Mix(
            ("privacy.epsilon",),
            "is missing and has no default: training adds noise, and a guarantee is chosen, not "
            "inherited; set for example epsilon: 8",
        )
        return
    try:
        plan.device.price(plan.planned[0])
    except PrivacyError as error:
        yield Mix(
            ("privacy.epsilon", "privacy", "train", "data", "features"),
            f"ε = {number(plan.setting.epsilon)} with δ = {number(job.privacy.delta)} cannot be "
            f"met, {error.what}; {error.fix}",
        )
    else:
        yield from aggregation_mixes(job, plan)
        yield from _claims(job, plan)
        yield from _self_stop(job, plan)
    if not job.infer_every or plan.softmax_epsilon is None:
        return
    try:
        plan.softmax_event()
    except PrivacyError as error:
        yield Mix(
            ("encrypt.laplace_eval.laplace_eval_eps", "data.classes"),
            f"{number(plan.softmax_epsilon)} cannot be met, {error.what}; {error.fix}",
        )


def _adds_noise(plan: JobPlan) -> bool:
    try:
        return plan.adds_noise
    except PrivacyError:
        return True  # noise that cannot be made without a chosen ε


def _claims(job: Job, plan: JobPlan) -> Iterator[Mix]:
    """Training releases without a proven guarantee, which a job must ask for by name."""
    events = [event for exchange in plan.planned for event in plan.device.price(exchange)]
    unproven = sorted({event.what for event in events if event.status != "proven"})
    if unproven and not job.privacy.accept_unproven:
        yield Mix(
            ("privacy.accept_unproven", "features", "train"),
            f"no guarantee is proven for: {', '.join(unproven)}; choose a proven variant, or set "
            "privacy.accept_unproven to true",
        )


def _self_stop(job: Job, plan: JobPlan) -> Iterator[Mix]:
    """A stop before anything was learned or evaluated."""
    stop = job.privacy.stop
    if stop is None:
        return
    try:
        rounds = plan.rounds
    except PrivacyError as error:
        yield Mix(("privacy.stop", "train", "features"), f"{error.what}; {error.fix}")
        return
    if rounds == 0:
        spent = MomentsAccountant()
        for exchange in plan.planned:
            if exchange.number <= 1:
                spent.add(plan.device.price(exchange))
        yield Mix(
            ("privacy.stop.delta", "privacy.stop.epsilon", "privacy.epsilon"),
            f"not one training round would begin: the first takes δ to "
            f"{up(spent.delta(stop.epsilon))} at ε = {number(stop.epsilon)}, past the threshold "
            f"{number(stop.delta)}; raise privacy.stop.epsilon, or lower privacy.epsilon",
        )
    elif job.infer_every > rounds:
        yield Mix(
            ("privacy.stop", "unsupervised.every_rounds"),
            f"training ends after round {rounds}, so devices would never be evaluated; set "
            f"unsupervised.every_rounds to at most {rounds}, or 0 for never",
        )


def _own_bases(job: Job) -> Iterator[Mix]:
    """What a PCA of each device's own cannot do, for want of a common basis."""
    projection = projection_of(job.features)
    if projection is None or projection.name == "ldp_fpca":
        return
    if projection.name == "ldp_pca" and job.selection.devices != "all":
        yield Mix(
            ("selection.devices", "features"),
            "with ldp_pca a device needs its own answer to the first exchange in all others; "
            "select all devices, or use ldp_fpca",
        )
    if projection.name == "local_pca" and job.infer_every:
        yield Mix(
            ("unsupervised.eval_type", "unsupervised.every_rounds", "features"),
            "with local_pca the cloud has no basis with which devices could evaluate; "
            "set unsupervised.eval_type to NOT_EVAL, or use ldp_fpca",
        )
