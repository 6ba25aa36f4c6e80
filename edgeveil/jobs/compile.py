"""A job -> its plan, or every reason why it cannot be one.

Holds a job's blocks against each other: values that are impossible together, and prices that cannot
be met, are refused all at once, as `Mix`es that name their keys. Only `compile_job` makes plans.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from edgeveil.config.base import ImpossibleMixError, Mix
from edgeveil.config.explain import number
from edgeveil.crypto.ring import Ring
from edgeveil.data.schema import impossible
from edgeveil.errors import CryptoError, DataError, PrivacyError, ProtocolError, UsageError
from edgeveil.evaluation.cluster_sums import ClusterSums
from edgeveil.evaluation.figures import ACCURACY
from edgeveil.jobs import buffered_rounds
from edgeveil.jobs.artifacts import read_weights
from edgeveil.jobs.job import CANONICAL_BYTES, Encrypt, Job
from edgeveil.jobs.plan import SOFTMAX, Plan, network_input
from edgeveil.parts.aggregation import AGGREGATIONS, build_rule
from edgeveil.parts.exchange import CLUSTER, EVALUATE, TRAIN, Exchange
from edgeveil.parts.features import PcaParameters, build_features, projection_of
from edgeveil.parts.method_context import MethodContext
from edgeveil.parts.methods import METHODS, trains_model
from edgeveil.parts.models import MODELS, Network, build_network
from edgeveil.parts.sources import SOURCES, require_schema
from edgeveil.parts.update import BaseStage
from edgeveil.privacy.events import UnprotectedEvent
from edgeveil.protocol.messages import SEGMENT_NAME
from edgeveil.selection import rounded_up

RECORD_VALUES = 1 << 24
UPLOAD_VALUES = 1 << 18  # of one per_sample upload: 2 MiB


@dataclass(frozen=True)
class KnownFleet:
    """What is known of the fleet that will play a job: `devices`, `trainers` of them, the `source`
    of their records, and the `key` of the file that says so."""

    devices: int
    trainers: int
    source: str
    key: str


def compile_job(job: Job, fleet: KnownFleet | None = None) -> Plan:
    """The plan of a job. Raises ImpossibleMixError with all reasons why the job, or this `fleet`,
    cannot play it."""
    mixes = [
        *_privacy(job),
        *_evaluation(job),
        *_federated_evaluation(job),
        *_cluster_sums(job),
        *_selected(job),
        *_participations(job, fleet),
        *_without_classes(job),
        *_time_budget(job),
    ]
    refused = list(_schema(job, fleet)) or list(_records(job, fleet))
    refused = refused or list(_features(job)) or list(_model(job))
    if refused:
        raise ImpossibleMixError([*mixes, *refused])
    plan = Plan(job)
    mixes += buffered_rounds.impossible(plan, None if fleet is None else fleet.trainers)
    refuses = METHODS[job.train.method].refuses or (lambda *_: ())
    secure = [*_secure(plan), *(Mix(*one) for one in refuses(job.train, plan.setting))]
    mixes += secure or list(_stages(plan)) or [*_own_bases(job), *_prices(plan, fleet)]
    if mixes:
        raise ImpossibleMixError(mixes)
    return plan


def compile_canonical(raw: bytes) -> Plan:
    """The plan of canonical bytes. Raises ProtocolError("bad_job") for anything else, and for a job
    that is impossible."""
    job = Job.from_canonical(raw)
    try:
        return compile_job(job)
    except (ImpossibleMixError, ValueError, RecursionError):
        raise ProtocolError("bad_job", "not a job that this version knows") from None


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


def _time_budget(job: Job) -> Iterator[Mix]:
    closes_s = job.round.deadline_s
    if job.round.time_budget_s >= closes_s:
        yield Mix(
            ("round.budget_s", "round.deadline_s"),
            f"answers leave up to {number(job.round.time_budget_s)} s after the package, but the "
            f"round closes {number(closes_s)} s after the broadcast; set at most "
            f"{number(closes_s / 2)}, or a later deadline_s",
        )


def _schema(job: Job, fleet: KnownFleet | None) -> Iterator[Mix]:
    """A schema that cannot be, or that says other records than the job."""
    schema = job.data.schema_
    if schema is None:
        return
    found = list(impossible(schema, "data.schema"))
    yield from found
    if found:
        return
    if job.data.classes != schema.classes:
        yield Mix(
            ("data.classes", "data.schema.label"),
            f"is {job.data.classes}, data.schema names {schema.classes} labels; leave it out, it "
            "follows from the schema",
        )
    if schema.anomaly != job.anomaly:
        yield _other_labels(job)
    if job.data.input_shape != schema.input_shape:
        yield Mix(
            ("data.input_shape", "data.schema"),
            f"is {list(job.data.input_shape)}, data.schema makes records of "
            f"{list(schema.input_shape)}; leave it out, it follows from the schema",
        )
    size = len(job.canonical())
    if size > CANONICAL_BYTES:
        yield Mix(
            ("data.schema",),
            f"makes the job {size} bytes, devices take {CANONICAL_BYTES}; name fewer columns or "
            "categories, and columns that are read alike in one list",
        )
    source = SOURCES.get(fleet.source) if fleet is not None else None
    if fleet is not None and source is not None:
        try:
            require_schema(source, schema)
        except DataError as error:
            yield Mix((f"{fleet.key}.data.source", "data.source"), f"{error.what}; {error.fix}")


def _other_labels(job: Job) -> Mix:
    """Labels that say what is normal where classes or a number are learned, or the reverse."""
    name = job.train.method if METHODS[job.train.method].anomaly or not job.model else ""
    key, what = ("train.method", f"method '{name}'") if name else ("model", "this model")
    if job.anomaly:
        return Mix(
            (key, "data.schema.label"),
            f"{what} learns what is normal, and the label does not say what is; write for example"
            " normal: [ok] in place of classes or number",
        )
    able = [f"train: {{method: {name}}}" for name in METHODS if METHODS[name].anomaly]
    able += [f"model: {{name: {name}}}" for name in MODELS if MODELS[name].anomaly]
    return Mix(
        (key, "data.schema.label.normal"),
        f"{what} learns classes or a number, and the label says what is normal; use"
        f" {' or '.join(able)}, or name classes",
    )


def _without_classes(job: Job) -> Iterator[Mix]:
    """What is about classes, where the label is a number or what is normal is learned."""
    if job.measure == ACCURACY:
        return
    at = "train.method" if job.anomaly else "data.schema.label.number"
    if not job.anomaly and not METHODS[job.train.method].regression:
        able = ", ".join(name for name in METHODS if METHODS[name].regression)
        yield Mix(
            ("train.method", at),
            f"method '{job.train.method}' learns classes, and the label is a number; use {able}, or"
            " name classes",
        )
    if job.infer_every or job.cluster_every:
        yield Mix(
            ("unsupervised.eval_type", "unsupervised.every_rounds", "unsupervised", at),
            f"devices would upload probabilities of classes, and {job.learns}; set"
            " unsupervised.eval_type to NOT_EVAL",
        )
    if build_rule(job.aggregation).validation_records:
        yield Mix(
            ("aggregation.name", at),
            f"'{job.aggregation.name}' scores uploads by their accuracy, and {job.learns}; use"
            " fedavg",
        )


def _records(job: Job, fleet: KnownFleet | None) -> Iterator[Mix]:
    """Records that are too large, or have not the form of those that the fleet holds."""
    if math.prod(job.data.input_shape) > RECORD_VALUES:
        yield Mix(
            ("data.input_shape",),
            f"one record would hold more than {RECORD_VALUES} values; make it smaller",
        )
    elif fleet is not None and fleet.source in SOURCES and SOURCES[fleet.source].shape:
        name, known = fleet.source, SOURCES[fleet.source]
        shape, classes = known.shape, known.classes
        if job.data.input_shape != shape:
            yield Mix(
                ("data.input_shape", "data.source", fleet.key),
                f"is {list(job.data.input_shape)}, records of {name} have {list(shape)}; "
                f"write input_shape: {list(shape)}",
            )
        if job.data.classes < classes:
            yield Mix(
                ("data.classes", "data.source", fleet.key),
                f"is {job.data.classes}, {name} has {classes} classes; write classes: {classes}",
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
    every = job.infer_every or job.cluster_every
    asked = {
        "unsupervised.every_rounds": bool(every),
        "federated_evaluation": job.federated_evaluation is not None,
    }
    for key in [key for key in asked if asked[key]]:
        if job.data.evaluation_share == 0:
            yield Mix(
                ("data.evaluation_share", key, "unsupervised.eval_type"),
                "devices are to be evaluated but keep no records apart for it; set for example "
                f"0.1, or leave {key.partition('.')[0]} out",
            )
        sums = key == "federated_evaluation" or job.cluster_every
        if sums and METHODS[job.train.method].learns_on == "nothing":
            yield Mix(
                (key, "unsupervised.upload", "train.method"),
                f"method '{job.train.method}' learns nothing that could be evaluated; leave "
                f"{key.partition('.')[0]} out",
            )
    if not every:
        return
    yield from _uploads(job)
    if every > job.rounds:
        yield Mix(
            ("unsupervised.every_rounds", "train.rounds", "unsupervised.eval_type"),
            f"{every} is more than the {job.rounds} rounds of the job, so devices would never be "
            f"evaluated; set at most {job.rounds}, or 0 for never",
        )
    if job.cluster_every:
        return
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


def _cluster_sums(job: Job) -> Iterator[Mix]:
    """`unsupervised.upload: sums`, and what is of other uploads, or of these alone."""
    wanted, key = job.unsupervised, "unsupervised"
    if wanted.upload != "sums":
        if wanted.epsilon is not None:
            yield Mix(
                (f"{key}.epsilon", f"{key}.upload"),
                f"is of upload: sums, and upload is {wanted.upload}, whose ε is"
                " encrypt.laplace_eval.laplace_eval_eps; leave it out, or set upload: sums",
            )
        return
    if not job.cluster_every:
        return
    if wanted.epsilon is None:
        yield Mix(
            (f"{key}.epsilon", f"{key}.upload"),
            "upload: sums needs the ε of all its sums together; add for example epsilon: 1",
        )
    if job.encrypt != Encrypt():
        yield Mix(
            ("encrypt.privacy_eval_type", "encrypt", f"{key}.upload"),
            "is about softmax uploads, and with upload: sums there are none; leave encrypt out, the"
            f" ε of the sums is {key}.epsilon",
        )
    cells = ClusterSums(job.data.classes).cells
    if cells > UPLOAD_VALUES:
        yield Mix(
            (f"{key}.upload", "data.classes"),
            f"sums by {job.data.classes} clusters are {cells} values a device, more than"
            f" {UPLOAD_VALUES}; use upload: mean",
        )


def _federated_evaluation(job: Job) -> Iterator[Mix]:
    """Evaluations that never come, or have no records, or no model."""
    asked, key = job.federated_evaluation, "federated_evaluation"
    if asked is None:
        return
    if asked.every_rounds > job.rounds:
        yield Mix(
            (f"{key}.every_rounds", "train.rounds"),
            f"{asked.every_rounds} is more than the {job.rounds} rounds of the job; set at most "
            f"{job.rounds}, or leave it out: the last model is always evaluated",
        )
    if asked.alarm_rate is not None and not job.anomaly:
        yield Mix(
            (f"{key}.alarm_rate", "train.method"),
            "is of a job that learns what is normal, and this one learns classes or a number; leave"
            " it out",
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
    if wanted.of_all and wanted.upload != "mean":
        yield Mix(
            ("unsupervised.eval_type", "unsupervised.upload"),
            "MEAN_SOFTMAX is the mean of one vector a device, and nothing is clustered; leave "
            "upload out, or choose for example SILHOUETTE_SCORE",
        )


def _selected(job: Job) -> Iterator[Mix]:
    wanted = job.selection.devices
    if wanted == "all":
        return
    selected = rounded_up(wanted, job.selection.over_select)
    if job.round.min_batch > selected:
        yield Mix(
            ("round.min_batch", "selection.devices", "selection.over_select"),
            f"a batch needs {job.round.min_batch} uploads (round.min_batch) but only {selected} "
            "devices are selected, so no round could ever close; raise selection.devices or "
            "lower round.min_batch",
        )


def _participations(job: Job, fleet: KnownFleet | None) -> Iterator[Mix]:
    limit, wanted = job.privacy.max_participations, job.selection.devices
    if limit is None or limit >= job.rounds or job.round.mode == "buffered":
        return  # a buffered round takes the answers of some, and a late one trains in none
    if wanted != "all":
        selected = rounded_up(wanted, job.selection.over_select)
        if fleet is None or selected < fleet.devices:
            return
    at = () if fleet is None else (f"{fleet.key}.devices",)
    yield Mix(
        ("privacy.max_participations", "selection.devices", "train.rounds", *at),
        f"every device is selected in each of the {job.rounds} rounds but may answer only "
        f"{limit} of them, so the job would fail after round {limit}; select fewer devices a "
        f"round (selection.devices), or set at least {job.rounds}",
    )


def _model(job: Job) -> Iterator[Mix]:
    """A model where none is trained, none where one is, or one that takes other records."""
    trains = trains_model(job.train.method)
    if not trains:
        yield from _for_updates_alone(job)
        if not job.features and METHODS[job.train.method].learns_on == "features":
            yield Mix(
                ("features", "train.method"),
                f"method '{job.train.method}' learns on public features; add for example "
                "`features: [{name: identity}]`",
            )
        return
    if projection_of(job.features) is not None:
        yield Mix(
            ("features", "train.method"),
            f"a PCA takes exchanges of its own, which method '{job.train.method}' has not; leave "
            "it out, or train with fm",
        )
        return
    if job.model is None:
        yield Mix(
            ("model", "train.method"),
            f"method '{job.train.method}' trains a model and none is named; add for example "
            "`model: {name: mlp}`",
        )
        return
    try:
        weights = read_weights(job)
        network = build_network(job.model, network_input(job), job.data.classes, weights)
        if weights:
            network.pretrained()  # whether they fit
        yield from _segment_names(job, network)
    except (DataError, UsageError) as error:
        own = (error.where,) if error.where.startswith("model.") else ()
        yield Mix((*own, "model", "data.input_shape"), f"{error.what}; {error.fix}")


def _segment_names(job: Job, network: Network) -> Iterator[Mix]:
    """Names of weights under which no segment can travel."""
    wrong = [one.name for one in network.weights if not re.fullmatch(SEGMENT_NAME, one.name)]
    if wrong and job.proxy.shuffle != "whole":
        yield Mix(
            ("model.function", "model", "proxy.shuffle"),
            f"{wrong[0]} is a name under which no segment travels: those have at most 64 small "
            "letters, digits and '.', '_', '-'; rename the module's attribute, or set "
            "proxy.shuffle to whole, where all weights are one segment",
        )


def _for_updates_alone(job: Job) -> Iterator[Mix]:
    for key, given in (
        ("model", job.model is not None),
        ("update", bool(job.update)),
        ("proxy.shuffle", job.proxy.shuffle == "whole"),
    ):
        if given:
            yield Mix(
                (key, "train.method"),
                f"is for methods that train a whole model, '{job.train.method}' does not; "
                "leave it out, or choose for example sgd",
            )


def _stages(plan: Plan) -> Iterator[Mix]:
    """Update stages that are fine alone and impossible together, or in this order."""
    job = plan.job
    names = [entry.name for entry in job.update]
    stages = list(zip(names, plan.setting.stages, strict=True))
    for index, (name, stage) in enumerate(stages):
        at = f"update.{index}"
        if name in names[:index]:
            yield Mix((at, "update"), f"'{name}' stands twice; leave one of them out")
        if stage.leads and index:
            yield Mix(
                (at, "update"),
                f"'{name}' decides where training starts and keeps what it led to, so nothing may "
                "have changed the update yet; put it first",
            )
        if stage.wire != "float32" and index < len(stages) - 1:
            yield Mix(
                (at, "update"),
                f"'{name}' is how values travel, so nothing may change them any more; put it last",
            )
        if stage.wire != "float32" and job.aggregation.secure:
            yield Mix(
                (at, "aggregation.secure"),
                f"what is summed under masks travels as integers, not as {stage.wire}; "
                f"leave '{name}' out, or aggregation.secure",
            )
        if getattr(job.update[index], "quantile", None) is not None and not job.aggregation.secure:
            yield Mix(
                (f"{at}.quantile", "aggregation.secure"),
                "a clip norm that moves follows a sum of the devices' bits, and uploads are not "
                "summed; set aggregation.secure, or leave quantile out",
            )
    noisy = [name for name, stage in stages if stage.protects]
    if len(noisy) > 1:
        yield Mix(
            ("update",),
            f"{' and '.join(noisy)} would each spend the whole of privacy.epsilon on the same "
            "update; keep one of them",
        )
    elif noisy and _noised_already(job, plan.setting):
        yield Mix(
            ("update", "train.method"),
            f"method '{job.train.method}' adds noise of its own, so '{noisy[0]}' would spend "
            "privacy.epsilon a second time; leave it out, or train with for example sgd",
        )
    if not job.privacy.accept_unproven:
        yield from _chosen_before_noise(stages)


def _noised_already(job: Job, setting: MethodContext) -> bool:
    device = METHODS[job.train.method].device(job.train, replace(setting, stages=()))
    try:
        alone = device.price(Exchange(1, TRAIN, 1))
    except PrivacyError:
        return True  # its own noise cannot be met
    return any(not isinstance(event, UnprotectedEvent) for event in alone)


def _chosen_before_noise(stages: Sequence[tuple[str, BaseStage]]) -> Iterator[Mix]:
    """Free after the noise; before it, the choice itself tells of records."""
    for index, (name, stage) in enumerate(stages):
        later = [other for other, after in stages[index + 1 :] if after.protects]
        if stage.chooses and later:
            yield Mix(
                (f"update.{index}", "update", "privacy.accept_unproven"),
                f"'{name}' chooses values before '{later[0]}' adds noise, and which it chose is "
                f"told without noise; put it after '{later[0]}', where it is free, or set "
                "privacy.accept_unproven to true",
            )


def _secure(plan: Plan) -> Iterator[Mix]:
    """What cannot be done where the cloud sees sums alone."""
    job, stages = plan.job, plan.setting.stages
    if not job.aggregation.secure:
        if job.aggregation.groups > 1:
            yield Mix(
                ("aggregation.groups", "aggregation.secure"),
                "uploads are dealt into groups where no single one is seen, and without secure "
                "sums each is; leave groups out, or set secure",
            )
        if job.privacy.noise == "shared":
            yield Mix(
                ("privacy.noise", "aggregation.secure"),
                "shared noise protects in sums alone, and without secure sums the cloud sees each "
                "upload with its part of the noise; set aggregation.secure, or noise: local",
            )
        return
    method = job.train.method
    yield from _groups(job)
    if not METHODS[method].summed:
        able = ", ".join(name for name in METHODS if METHODS[name].summed)
        yield Mix(
            ("aggregation.secure", "train.method"),
            f"what devices upload with method '{method}' is no sum of integers, so it cannot be "
            f"summed under masks; use {able}, or leave secure out",
        )
    elif job.privacy.noise == "shared" and not (
        METHODS[method].shares or (stages and stages[-1].shares)
    ):
        able = ", ".join(name for name in METHODS if METHODS[name].shares)
        yield Mix(
            ("privacy.noise", "train.method", "update"),
            f"the noise of method '{method}' cannot be shared; use {able}, or a method without "
            "noise and the stage gradient_gaussian, or noise: local",
        )
    for index, (entry, stage) in enumerate(zip(job.update, stages, strict=True)):
        if stage.chooses:
            yield Mix(
                ("aggregation.secure", f"update.{index}"),
                f"'{entry.name}' sends few values to save bytes, but under masks all of them "
                "travel alike; leave it out, or leave secure out",
            )
    if job.privacy.noise == "shared" and getattr(job.train, "noise", "gaussian") == "laplace":
        yield Mix(
            ("privacy.noise", "train.noise"),
            "parts of Laplace noise do not add up to Laplace noise, so it cannot be shared; use "
            "train.noise: gaussian, or privacy.noise: local",
        )
    projection = projection_of(job.features)
    if projection is not None and projection.name == "ldp_pca":
        yield Mix(
            ("aggregation.secure", "features"),
            "with ldp_pca each device learns in a basis of its own, so a sum of what they upload "
            "means nothing that could be looked at; use ldp_fpca",
        )
    if projection is not None and projection.noise == "wishart":
        yield Mix(
            ("aggregation.secure", "features"),
            "Wishart noise has no bound that its sums could be given room for; set noise: gaussian",
        )


def _groups(job: Job) -> Iterator[Mix]:
    """A rule that looks at single uploads, and groups that are of no use or too small."""
    rule, groups = job.aggregation.name, job.aggregation.groups
    of_groups = AGGREGATIONS[rule].of_groups
    if rule == "fedavg" and groups > 1:
        yield Mix(
            ("aggregation.groups", "aggregation.name"),
            "the mean of groups is the mean of all, so groups are of no use to fedavg; leave them "
            "out, or choose for example trimmed_mean",
        )
    elif rule != "fedavg" and not (of_groups and groups > 1):
        way = "set aggregation.groups, whose means it compares then, " if of_groups else ""
        yield Mix(
            ("aggregation.secure", "aggregation.name", "aggregation.groups"),
            f"with secure sums the cloud sees the sum of all uploads and no single one, and "
            f"'{rule}' looks at single ones; {way}use fedavg, or leave secure out",
        )
    if groups > 1 and job.round.min_batch < 2 * groups:
        yield Mix(
            ("aggregation.groups", "round.min_batch"),
            f"a batch of {job.round.min_batch} uploads in {groups} groups leaves one upload to "
            f"some of them, which is then seen; set round.min_batch to at least {2 * groups}, or "
            "fewer groups",
        )


def _sum_room(plan: Plan) -> Iterator[Mix]:
    """Sums that no ring holds."""
    summed = {s.name: s for exchange in plan.planned for s in plan.segments(exchange) if s.bits}
    inferred = summed.pop(SOFTMAX, None)
    lower = "lower data.nominal_records"
    sums = [("aggregation.secure", "devices' sums do", lower, spec) for spec in summed.values()]
    if inferred is not None:
        key = "encrypt.laplace_eval.laplace_eval_eps"
        sums.append(
            (key, "sum of the devices' noised softmax does", "raise laplace_eval_eps", inferred)
        )
    for phase, key, _ in _evaluations(plan.job) if plan.setting.summed else ():
        counts = plan.evaluation_of(phase).spec
        sums.append((key, "sum of the devices' noised counts does", "raise its epsilon", counts))
    told: set[str] = set()
    for key, what, way, spec in sums:
        try:
            Ring(spec.count, spec.bits)
        except CryptoError as error:
            if what not in told:
                yield Mix(
                    (key, "selection.devices", "data.nominal_records", "privacy.epsilon"),
                    f"the {what} not fit the largest ring, {error.what}; {way}, or name fewer"
                    " devices in selection.devices",
                )
            told.add(what)


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
    asked = {
        "unsupervised.eval_type": bool(job.infer_every or job.cluster_every),
        "federated_evaluation": job.federated_evaluation is not None,
    }
    for key in [key for key in asked if asked[key] and projection.name == "local_pca"]:
        yield Mix(
            (key, "unsupervised.every_rounds", "features"),
            "with local_pca the cloud has no basis with which devices could evaluate; leave "
            f"{key.partition('.')[0]} out, or use ldp_fpca",
        )


def _prices(plan: Plan, fleet: KnownFleet | None) -> Iterator[Mix]:
    """Budgets that no noise of this version meets: told now, not by devices in the first round."""
    job = plan.job
    if job.privacy.epsilon is None and _adds_noise(plan):
        yield Mix(
            ("privacy.epsilon",),
            "is missing and has no default: training adds noise, and a guarantee is chosen, not "
            "inherited; set for example epsilon: 8",
        )
        return
    inferred = list(_evaluation_prices(plan))
    try:
        plan.device.price(plan.planned[0])
    except PrivacyError as error:
        yield Mix(
            ("privacy.epsilon", "privacy", "train", "data", "features"),
            f"ε = {number(plan.setting.epsilon)} with δ = {number(job.privacy.delta)} cannot be "
            f"met, {error.what}; {error.fix}",
        )
    else:
        if not inferred:
            yield from _sum_room(plan)
        yield from _aggregation(plan, fleet)
        yield from _claims(plan)
    yield from inferred


def _evaluation_prices(plan: Plan) -> Iterator[Mix]:
    """An ε that no noise of inferences, or of the devices' counts, meets."""
    asked: list[tuple[str, float, Callable[[], object]]]
    asked = [(key, e, partial(plan.evaluation_of, of)) for of, key, e in _evaluations(plan.job)]
    if plan.job.infer_every and plan.softmax_epsilon is not None:
        key = "encrypt.laplace_eval.laplace_eval_eps"
        asked.insert(0, (key, plan.softmax_epsilon, plan.softmax_event))
    for key, epsilon, made in asked:
        try:
            made()
        except PrivacyError as error:
            what = f"{number(epsilon)} cannot be met, {error.what}; {error.fix}"
            yield Mix((key, "data.classes", "privacy.delta"), what)


def _evaluations(job: Job) -> Iterator[tuple[str, str, float]]:
    """The phases of evaluations that a job asks for, each with its ε and the key of that."""
    asked, epsilon = job.federated_evaluation, job.unsupervised.epsilon
    if asked is not None:
        yield EVALUATE, "federated_evaluation.epsilon", asked.epsilon
    if job.cluster_every and epsilon is not None:
        yield CLUSTER, "unsupervised.epsilon", epsilon


def _aggregation(plan: Plan, fleet: KnownFleet | None) -> Iterator[Mix]:
    """A rule that is undefined on what devices upload, or needs more uploads than can come."""
    job = plan.job
    rule, name = plan.rule, job.aggregation.name
    train = next(one for one in plan.planned if one.phase == TRAIN)
    if not rule.sums and plan.cloud.aim(plan.cloud.initial_state(), train) is None:
        others = [one for one in AGGREGATIONS if AGGREGATIONS[one].rule.sums]
        yield Mix(
            ("aggregation.name", "train.method"),
            f"'{name}' compares updates of weights, and is undefined on the noised sums that"
            f" method '{job.train.method}' uploads; use {', '.join(others)}, or another method",
        )
    elif rule.whole and len(plan.cloud.segments(train)) > 1 and plan.sets == 1:
        way = "set proxy.shuffle to whole" if trains_model(job.train.method) else "use fedavg"
        yield Mix(
            ("aggregation.name", "proxy.shuffle"),
            f"'{name}' compares whole updates, but the proxy shuffles layer by layer, so the cloud "
            f"cannot tell which layers belong together; {way}",
        )
    if plan.sets > 1:
        if rule.least > plan.sets:
            yield Mix(
                ("aggregation.groups", "aggregation.k", "aggregation.malicious"),
                f"'{name}' needs {rule.least} means as it is set, and there are {plan.sets} "
                f"groups; set at least {rule.least}, or ask for fewer",
            )
    elif rule.least > max(job.round.min_batch, most := _most_uploads(job, fleet)):
        yield Mix(
            ("aggregation.k", "aggregation.malicious", "aggregation", "selection.devices"),
            f"'{name}' needs {rule.least} uploads as it is set, and at most {most:.0f} can come in "
            "a round; ask for fewer, or select more devices",
        )


def _most_uploads(job: Job, fleet: KnownFleet | None) -> float:
    """The most uploads that a round can have; infinite where that is for the site to say."""
    asked = job.selection.devices
    selected = math.inf if asked == "all" else rounded_up(asked, job.selection.over_select)
    return selected if fleet is None else min(selected, fleet.trainers)


def _adds_noise(plan: Plan) -> bool:
    try:
        return plan.adds_noise
    except PrivacyError:
        return True  # noise that cannot be made without a chosen ε


def _claims(plan: Plan) -> Iterator[Mix]:
    """Training releases without a proven guarantee, which a job must ask for by name."""
    events = [event for exchange in plan.planned for event in plan.device.price(exchange)]
    unproven = sorted({event.what for event in events if event.status != "proven"})
    if unproven and not plan.job.privacy.accept_unproven:
        yield Mix(
            ("privacy.accept_unproven", "features", "train"),
            f"no guarantee is proven for: {', '.join(unproven)}; choose a proven variant, or "
            "consent in the job: `privacy: {accept_unproven: true}`",
        )
