"""Validate combinations of a job's settings and build its Plan.

Impossible combinations, and prices that cannot be met, are reported all at once, as `Mix`es of
their keys. Only `compile_job` makes plans.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
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
from edgeveil.parts.features import PcaParameters, build_features, projection_of
from edgeveil.parts.method_context import MethodContext
from edgeveil.parts.methods import METHODS, trains_model
from edgeveil.parts.models import MODELS, build_network
from edgeveil.parts.round import ASK, CLUSTER, EVALUATE, TRAIN, PlannedRound
from edgeveil.parts.sources import SOURCES, require_schema
from edgeveil.parts.stage import BaseStage
from edgeveil.parts.update import UpdateCloud
from edgeveil.privacy.events import UnprotectedEvent
from edgeveil.protocol.messages import SEGMENT_NAME
from edgeveil.selection import rounded_up
from edgeveil.statistics.blocks import vectors

RECORD_VALUES = 1 << 24
UPLOAD_VALUES = 1 << 18  # of one per_sample upload: 2 MiB


@dataclass(frozen=True)
class KnownFleet:
    """The fleet of a job, with the `key` of the file that defines it."""

    devices: int
    trainers: int
    source: str
    key: str


def compile_job(job: Job, fleet: KnownFleet | None = None) -> Plan:
    """Return the plan of a job. Raises ImpossibleMixError with all reasons, also by `fleet`."""
    mixes = [
        *_privacy(job),
        *_unit(job),
        *_evaluation(job),
        *_cluster_sums(job),
        *_asked_beside(job),
        *_selected(job, fleet),
        *_without_classes(job),
    ]
    refused = list(_schema(job, fleet)) or list(_records(job, fleet))
    refused = refused or list(_features(job)) or list(_model(job))
    if refused:
        raise ImpossibleMixError([*mixes, *refused])
    plan = Plan(job)
    mixes += buffered_rounds.impossible(plan, None if fleet is None else fleet.trainers)
    refuses = METHODS[job.train.method].refuses or (lambda *_: ())
    secure = [*_secure(plan), *(Mix(*one) for one in refuses(job.train, plan.context))]
    mixes += secure or list(_stages(plan)) or [*_own_bases(job), *_prices(plan, fleet)]
    mixes += list(_update_form(plan)) if not mixes else []
    if mixes:
        raise ImpossibleMixError(mixes)
    return plan


def compile_canonical(raw: bytes) -> Plan:
    """Return the plan of canonical bytes. Raises ProtocolError("bad_job")."""
    job = Job.from_canonical(raw)
    try:
        return compile_job(job)
    except (ImpossibleMixError, ValueError, RecursionError):
        raise ProtocolError("bad_job", "not a job of this version") from None


def _privacy(job: Job) -> Iterator[Mix]:
    delta, bound = job.privacy.delta, 1 / job.data.nominal_records
    if delta >= bound:
        text = f"{number(delta)} gives no protection; set for example {number(bound / 1000)}"
        yield Mix(("privacy.delta", "data.nominal_records"), text)
    asked, federated = job.unsupervised, job.federated_evaluation
    every = asked.every_rounds if job.infer_every or job.cluster_every else 0
    federated_every = None if federated is None else federated.every_rounds
    asked_every = None if job.statistics is None else job.statistics.every_rounds
    for value, *keys in (
        (job.privacy.max_participations, "privacy.max_participations", "train.rounds"),
        (every, "unsupervised.every_rounds", "train.rounds", "unsupervised.eval_type"),
        (federated_every, "federated_evaluation.every_rounds", "train.rounds"),
        (asked_every, "statistics.every_rounds", "train.rounds"),
    ):
        if value is not None and value > job.rounds:
            text = f"{value} is more than the {job.rounds} rounds of the job; set at most"
            yield Mix(tuple(keys), f"{text} {job.rounds}, or leave it out")
    if job.early_stopping is not None and federated_every == 0:
        text = "early stopping follows the devices' figures, which come after the last round; set"
        at = ("federated_evaluation.every_rounds", "early_stopping", "federated_evaluation")
        yield Mix(at, f"{text} for example 1")
    mode = job.early_stopping.mode if job.early_stopping is not None else None
    if mode is not None and (job.test_metric is None or federated is not None):
        text = "needs test_metric, and no federated_evaluation: your metric has no price on devices"
        yield Mix(("early_stopping.mode", "federated_evaluation"), text)
    closes_s = job.round.deadline_s
    if job.round.time_budget_s >= closes_s:
        text = f"the round closes after {number(closes_s)} s; set at most {number(closes_s / 2)}"
        yield Mix(("round.budget_s", "round.deadline_s"), text)


def _unit(job: Job) -> Iterator[Mix]:
    """Yield a unit that nothing names or the method cannot bound, and persons without a table."""
    unit, person, schema = job.privacy.unit, job.data.person, job.data.schema_
    if person is not None and schema is None:
        text = "names a column, and without data.schema records are numbers; add data.schema"
        yield Mix(("data.person", "data.schema"), text)
    elif schema is not None and schema.person != person:
        yield Mix(("data.schema.person", "data.person"), "is set by data.person; write it there")
    if unit == "person" and person is None:
        text = "needs the column that names persons; add for example person: patient to data"
        yield Mix(("privacy.unit", "data.person"), text)
    if unit not in METHODS[job.train.method].units:
        able = ", ".join(name for name in METHODS if unit in METHODS[name].units)
        text = f"method '{job.train.method}' cannot bound what a {unit} adds; use {able}, or leave"
        yield Mix(("privacy.unit", "train.method"), f"{text} unit out")
    if unit == "device" and job.infer_every and job.unsupervised.upload == "per_sample":
        text = "per_sample uploads hide a record, not a device; use upload: mean or sums"
        yield Mix(("unsupervised.upload", "privacy.unit"), text)


def _questions(job: Job) -> Iterator[Mix]:
    schema, rule = job.data.schema_, job.aggregation.name
    if rule != "fedavg":
        text = f"statistics are sums, which '{rule}' does not give; use fedavg"
        yield Mix(("aggregation.name", "train.method"), text)
    if schema is not None and schema.windows is not None:
        text = "statistics are of rows, not of windows; leave windows out"
        yield Mix(("data.schema.windows", "train.method"), text)
    if job.data.evaluation_share:
        text = "statistics are of all records of a device; leave evaluation_share out"
        yield Mix(("data.evaluation_share", "train.method"), text)


def _schema(job: Job, fleet: KnownFleet | None) -> Iterator[Mix]:
    schema, asked = job.data.schema_, job.train.records_schema
    columns = None if schema is None or not schema.raw else schema.columns or ()
    if columns != (asked and asked.columns):
        text = "has the columns that statistics name, raw, and only then; write a block statistics"
        keys = ("data.schema.columns", "data.schema", "train.method", "train.columns")
        yield Mix(keys, f"{text} and no columns")
        return
    if asked is not None:
        yield from _questions(job)
    if schema is None:
        return
    found = list(impossible(schema, "data.schema"))
    yield from found
    if found:
        return
    for key, given, made in (
        ("classes", job.data.classes, schema.classes),
        ("input_shape", list(job.data.input_shape), list(schema.input_shape)),
    ):
        if given != made:
            text = f"is {given}, and data.schema makes it {made}; leave it out"
            yield Mix((f"data.{key}", "data.schema.label", "data.schema"), text)
    if schema.anomaly != job.anomaly:
        yield _other_labels(job)
    if (size := len(job.canonical())) > CANONICAL_BYTES:
        text = f"makes the job {size} bytes, devices accept {CANONICAL_BYTES}; use fewer columns"
        yield Mix(("data.schema",), f"{text} or categories, and like columns in one list")
    if fleet is not None and fleet.source in SOURCES:
        try:
            require_schema(SOURCES[fleet.source], schema)
        except DataError as error:
            yield Mix((f"{fleet.key}.data.source", "data.source"), f"{error.what}; {error.fix}")


def _other_labels(job: Job) -> Mix:
    name = job.train.method if METHODS[job.train.method].anomaly or not job.model else ""
    key, what = ("train.method", f"method '{name}'") if name else ("model", "this model")
    if job.anomaly:
        text = f"{what} learns normal records; write for example normal: [ok] instead of classes"
        return Mix((key, "data.schema.label"), text)
    able = [f"train: {{method: {name}}}" for name in METHODS if METHODS[name].anomaly]
    able += [f"model: {{name: {name}}}" for name in MODELS if MODELS[name].anomaly]
    text = f"{what} learns classes or a number; name classes, or use {' or '.join(able)}"
    return Mix((key, "data.schema.label.normal"), text)


def _without_classes(job: Job) -> Iterator[Mix]:
    if job.measure == ACCURACY:
        return
    at = "train.method" if job.anomaly else "data.schema.label.number"
    if not job.anomaly and not METHODS[job.train.method].regression:
        able = ", ".join(name for name in METHODS if METHODS[name].regression)
        text = f"method '{job.train.method}' learns classes, and the label is a number; use {able}"
        yield Mix(("train.method", at), f"{text}, or name classes")
    if job.infer_every or job.cluster_every:
        text = f"{job.learns}, and no probabilities of classes can be uploaded; set NOT_EVAL"
        keys = ("unsupervised.eval_type", "unsupervised.every_rounds", "unsupervised", at)
        yield Mix(keys, text)
    if build_rule(job.aggregation).validation_records:
        text = f"'{job.aggregation.name}' scores uploads by accuracy, and {job.learns}; use fedavg"
        yield Mix(("aggregation.name", at), text)


def _records(job: Job, fleet: KnownFleet | None) -> Iterator[Mix]:
    shape, fleet = job.data.input_shape, None if job.data.schema_ else fleet  # else by the schema
    if math.prod(shape) > RECORD_VALUES:
        yield Mix(("data.input_shape",), f"has more than {RECORD_VALUES} values; make it smaller")
    elif fleet is not None and fleet.source in SOURCES and (known := SOURCES[fleet.source]).shape:
        if shape != known.shape:
            text = f"is {list(shape)}, of {fleet.source} write input_shape: {list(known.shape)}"
            yield Mix(("data.input_shape", "data.source", fleet.key), text)
        if job.data.classes < known.classes:
            text = f"is {job.data.classes}, {fleet.source} has {known.classes} classes; write that"
            yield Mix(("data.classes", "data.source", fleet.key), text)


def _features(job: Job) -> Iterator[Mix]:
    """Yield maps that do not fit the records, and a PCA that is not the last entry."""
    last = len(job.features) - 1
    for index, entry in enumerate(job.features):
        if isinstance(entry, PcaParameters):
            if index == 0 or index != last:
                text = f"{entry.name} projects the output of the maps before it; put it last, once"
                yield Mix((f"features.{index}",), text)
            continue
        try:
            build_features([entry]).output_dim(job.data.input_shape)
        except DataError as error:
            yield Mix((f"features.{index}", "data.input_shape"), f"{error.what}; {error.fix}")


def _evaluation(job: Job) -> Iterator[Mix]:
    for key in _evaluation_keys(job):
        block = key.partition(".")[0]
        if job.data.evaluation_share == 0:
            text = f"devices reserve no records for it; set for example 0.1, or remove {block}"
            yield Mix(("data.evaluation_share", key, "unsupervised.eval_type"), text)
        sums = key == "federated_evaluation" or job.cluster_every
        if sums and METHODS[job.train.method].learns_on == "nothing":
            text = f"method '{job.train.method}' learns nothing to evaluate; leave {block} out"
            yield Mix((key, "unsupervised.upload", "train.method"), text)
    federated = job.federated_evaluation
    if federated is not None and federated.alarm_rate is not None and not job.anomaly:
        text = "is only for jobs with data.schema.label.normal; remove it"
        yield Mix(("federated_evaluation.alarm_rate", "train.method"), text)
    asked = job.unsupervised
    if (job.infer_every or job.cluster_every) and asked.of_all and asked.upload != "mean":
        text = "MEAN_SOFTMAX is the mean of one vector a device; leave upload out"
        yield Mix(("unsupervised.eval_type", "unsupervised.upload"), text)
    if not job.infer_every:
        return
    most = UPLOAD_VALUES // job.data.classes
    if asked.upload == "per_sample" and asked.samples_per_device > most:
        text = f"more than {UPLOAD_VALUES} values a device; set at most {most}, or upload: mean"
        keys = ("unsupervised.samples_per_device", "data.classes", "unsupervised.upload")
        yield Mix(keys, text)
    if job.encrypt.privacy_eval_type == "LAPLACE" and job.encrypt.laplace_eval is None:
        text = "LAPLACE needs an ε; add for example `laplace_eval: {laplace_eval_eps: 20}`"
        keys = ("encrypt.laplace_eval", "encrypt.privacy_eval_type", "unsupervised")
        yield Mix(keys, text)
    if job.encrypt.privacy_eval_type == "NOT_ENCRYPT" and not job.privacy.accept_unproven:
        text = "NOT_ENCRYPT has no guarantee; use LAPLACE, or set privacy.accept_unproven to true"
        keys = ("encrypt.privacy_eval_type", "privacy.accept_unproven", "unsupervised")
        yield Mix(keys, text)


def _evaluation_keys(job: Job) -> list[str]:
    every = job.infer_every or job.cluster_every
    keys = ["unsupervised.every_rounds"] if every else []
    return [*keys, "federated_evaluation"] if job.federated_evaluation is not None else keys


def _cluster_sums(job: Job) -> Iterator[Mix]:
    upload, epsilon = "unsupervised.upload", "unsupervised.epsilon"
    if job.unsupervised.upload != "sums" and job.unsupervised.epsilon is not None:
        what = "is of upload: sums; leave it out, or use encrypt.laplace_eval"
        yield Mix((epsilon, upload), what)
    if not job.cluster_every:
        return
    if job.unsupervised.epsilon is None:
        yield Mix((epsilon, upload), "upload: sums needs the ε of all sums; add for example 1")
    if job.encrypt != Encrypt():
        text = f"with upload: sums there are no softmax uploads; use {epsilon} instead"
        yield Mix(("encrypt.privacy_eval_type", "encrypt", upload), text)
    cells = ClusterSums(job.data.classes).cells
    if cells > UPLOAD_VALUES:
        text = f"would be {cells} values a device, more than {UPLOAD_VALUES}; use upload: mean"
        yield Mix((upload, "data.classes"), text)


def _asked_beside(job: Job) -> Iterator[Mix]:
    asked, schema = job.statistics, job.data.schema_
    if asked is None:
        return
    if job.data.asks:
        yield Mix(("statistics", "train.method"), "stand beside training, or in place of train")
    if any(one.values is not None for one in asked.columns):
        text = "that nobody listed take four exchanges; ask them in a job of their own"
        yield Mix(("statistics.columns",), f"values {text}")
    elif (cells := vectors(asked, 1)[0].cells) > UPLOAD_VALUES:
        text = f"makes {cells} cells, more than {UPLOAD_VALUES}; ask less"
        yield Mix(("statistics.tables", "statistics.columns"), text)
    if schema is not None and schema.windows is not None:
        text = "statistics are of rows, not of windows; ask in a job of its own"
        yield Mix(("statistics", "data.schema.windows"), text)


def _selected(job: Job, fleet: KnownFleet | None) -> Iterator[Mix]:
    """Yield too few devices per round, or more rounds than a device may answer."""
    wanted, least = job.selection.devices, job.round.min_batch
    selected = None if wanted == "all" else rounded_up(wanted, job.selection.over_select)
    if selected is not None and least > selected:
        text = f"a batch needs {least} uploads but only {selected} devices are selected; lower it"
        yield Mix(("round.min_batch", "selection.devices", "selection.over_select"), text)
    limit = job.privacy.max_participations
    if limit is None or limit >= job.rounds or job.round.mode == "buffered":
        return  # a buffered round uses some answers, and a late device skips rounds
    if selected is not None and (fleet is None or selected < fleet.devices):
        return
    at = () if fleet is None else (f"{fleet.key}.devices",)
    text = f"all devices are selected, so it would fail after round {limit}; set {job.rounds}, or"
    text += " select fewer devices a round"
    yield Mix(("privacy.max_participations", "selection.devices", "train.rounds", *at), text)


def _model(job: Job) -> Iterator[Mix]:
    """Yield a model without a method that trains it, the reverse, or one for other records."""
    method, whole = job.train.method, job.proxy.shuffle == "whole"
    if not trains_model(method):
        given = {"model": job.model, "update": job.update}
        for key in [key for key, value in given.items() if value] + ["proxy.shuffle"] * whole:
            text = f"is for methods that train a whole model, as sgd, and '{method}' does not"
            yield Mix((key, "train.method"), f"{text}; leave it out")
        if not job.features and METHODS[method].learns_on == "features":
            text = f"method '{method}' learns on public features; add for example"
            yield Mix(("features", "train.method"), f"{text} `features: [{{name: identity}}]`")
        return
    if projection_of(job.features) is not None:
        text = f"a PCA needs its own rounds, which method '{method}' does not have; leave it out"
        yield Mix(("features", "train.method"), text)
        return
    if job.model is None:
        text = f"method '{method}' trains a model; add for example"
        yield Mix(("model", "train.method"), f"{text} `model: {{name: mlp}}`")
        return
    schema, vocabulary = job.data.schema_, getattr(job.model, "tokens", None)
    sizes = [one.tokens.size for one in (schema and schema.columns) or () if one.tokens is not None]
    if vocabulary is not None and vocabulary < max(sizes, default=0):
        text = f"is {vocabulary}, and the tokens of data.schema have {max(sizes)} ids; write"
        yield Mix(("model.tokens", "model", "data.schema"), f"{text} tokens: {max(sizes)}")
    try:
        weights = read_weights(job)
        network = build_network(job.model, network_input(job), job.data.classes, weights)
        if weights:
            network.pretrained()  # raises unless they fit
        if network.statistics and (METHODS[method].privacy != "none" or job.update):
            text = "averages batch normalisations' statistics, which mix records and bear no noise;"
            text += " use method sgd without update stages, or GroupNorm, or freeze them by"
            text += " state_dict and adapters: {rank: 0, head: ['*']}"
            yield Mix(("model.function", "model", "train.method", "update"), text)
        wrong = [one.name for one in network.weights if not re.fullmatch(SEGMENT_NAME, one.name)]
        if wrong and not whole:
            text = f"{wrong[0]} is no valid name of a segment; use at most 64 of a-z, 0-9, '.',"
            text += " '_', '-', or set proxy.shuffle to whole"
            yield Mix(("model.function", "model", "proxy.shuffle"), text)
    except (DataError, UsageError) as error:
        own = (error.where,) if error.where.startswith("model.") else ()
        yield Mix((*own, "model", "data.input_shape"), f"{error.what}; {error.fix}")


def _update_form(plan: Plan) -> Iterator[Mix]:
    """Yield settings that do not fit weights by records, the cloud's optimiser or own weights."""
    job, context, method = plan.job, plan.context, METHODS[plan.job.train.method]
    server = context.server is not None
    given = {"aggregation.weights": context.weighted, "aggregation.server_optimizer": server}
    rule = job.aggregation.name
    for key in [key for key, value in given.items() if value]:
        if method.learns_on != "model":
            text = f"is for methods that train a whole model, as sgd, and '{method.name}' does not"
            yield Mix((key, "train.method"), f"{text}; leave it out")
        elif rule != "fedavg" and key == "aggregation.weights":
            text = f"'{rule}' compares uploads, which weights would scale; use fedavg, or equal"
            yield Mix((key, "aggregation.name"), text)
    if not isinstance(plan.cloud, UpdateCloud):
        return
    more = plan.cloud.carries_more
    what = "weights: records" if context.weighted else f"method '{method.name}'"
    if more and job.update:
        text = f"stages change updates alone, and with {what} uploads carry more; leave update out"
        yield Mix(("update", "aggregation.weights", "train.method"), text)
    if more and job.round.mode == "buffered":
        text = f"late uploads weigh less, which {what} cannot account for; use mode: sync"
        yield Mix(("round.mode", "aggregation.weights", "train.method"), text)
    if plan.shows_counts and plan.adds_noise:
        text = f"{what} tells the number of records without noise; use weights: equal, or a method"
        yield Mix(("aggregation.weights", "train.method"), f"{text} without noise")
    personal = method.personal or context.local
    for key in _evaluation_keys(job) if personal and plan.adds_noise else ():
        text = "figures of weights that stay on a device would tell of its training records, which"
        yield Mix((key, "train.method"), f"{text} only the uploads' noise protects; leave it out")
    if context.local and any(stage.leads for stage in context.stages):
        text = "a stage decides where training starts, and so do the weights that stay; leave it"
        yield Mix(("update.0", "train.local"), f"{text} out")


def _stages(plan: Plan) -> Iterator[Mix]:
    job = plan.job
    names = [entry.name for entry in job.update]
    stages = list(zip(names, plan.context.stages, strict=True))
    for index, (name, stage) in enumerate(stages):
        at = f"update.{index}"
        if name in names[:index]:
            yield Mix((at, "update"), f"'{name}' occurs twice; leave one of them out")
        if stage.leads and index:
            yield Mix((at, "update"), f"'{name}' decides where training starts; put it first")
        if stage.wire != "float32" and index < len(stages) - 1:
            yield Mix((at, "update"), f"'{name}' encodes values for sending; put it last")
        if stage.wire != "float32" and job.aggregation.secure:
            text = f"masked sums travel as integers, not as {stage.wire}; leave '{name}' out"
            yield Mix((at, "aggregation.secure"), text)
        if getattr(job.update[index], "quantile", None) is not None and not job.aggregation.secure:
            text = "a clip norm that moves follows a sum of the devices' bits; leave quantile out,"
            yield Mix((f"{at}.quantile", "aggregation.secure"), f"{text} or set aggregation.secure")
    noisy = [name for name, stage in stages if stage.protects]
    if len(noisy) > 1:
        text = f"{' and '.join(noisy)} would each spend all of privacy.epsilon; keep one of them"
        yield Mix(("update",), text)
    elif noisy and _noised_already(job, plan.context):
        text = f"method '{job.train.method}' adds noise of its own; leave '{noisy[0]}' out"
        yield Mix(("update", "train.method"), text)
    if not job.privacy.accept_unproven:
        yield from _chosen_before_noise(stages)


def _noised_already(job: Job, context: MethodContext) -> bool:
    device = METHODS[job.train.method].device(job.train, replace(context, stages=()))
    try:
        alone = device.price(PlannedRound(1, TRAIN, 1))
    except PrivacyError:
        return True  # no noise meets its budget
    return any(not isinstance(event, UnprotectedEvent) for event in alone)


def _chosen_before_noise(stages: Sequence[tuple[str, BaseStage]]) -> Iterator[Mix]:
    """Yield stages that choose values before the noise: the choice itself reveals records."""
    for index, (name, stage) in enumerate(stages):
        later = [other for other, after in stages[index + 1 :] if after.protects]
        if stage.chooses and later:
            text = f"'{name}' chooses values before '{later[0]}' adds noise, and its choice has"
            text += f" none; put it after '{later[0]}', or set privacy.accept_unproven to true"
            yield Mix((f"update.{index}", "update", "privacy.accept_unproven"), text)


def _secure(plan: Plan) -> Iterator[Mix]:
    job, stages, method = plan.job, plan.context.stages, plan.job.train.method
    shared = job.privacy.noise != "local"
    if not job.aggregation.secure:
        if job.aggregation.groups > 1:
            text = "without secure sums each upload is seen; leave groups out, or set secure"
            yield Mix(("aggregation.groups", "aggregation.secure"), text)
        if shared:
            text = f"{job.privacy.noise} noise protects only in sums; set aggregation.secure, or"
            text += " noise: local"
            yield Mix(("privacy.noise", "aggregation.secure"), text)
        return
    yield from _groups(job)
    yield from _correlated(plan)
    if not METHODS[method].summed:
        able = ", ".join(name for name in METHODS if METHODS[name].summed)
        text = f"uploads of method '{method}' cannot be summed as integers; use {able}, or leave"
        yield Mix(("aggregation.secure", "train.method"), f"{text} secure out")
    elif shared and not (METHODS[method].shares or (stages and stages[-1].shares)):
        able = ", ".join(name for name in METHODS if METHODS[name].shares)
        text = f"noise of '{method}' cannot be shared; use {able}, the stage gradient_gaussian, or"
        text += " noise: local"
        yield Mix(("privacy.noise", "train.method", "update"), text)
    for index, (entry, stage) in enumerate(zip(job.update, stages, strict=True)):
        if stage.chooses:
            text = f"'{entry.name}' sends few values, but under masks all travel; leave it out"
            yield Mix(("aggregation.secure", f"update.{index}"), text)
    if shared and getattr(job.train, "noise", "gaussian") == "laplace":
        text = "parts of Laplace noise do not add up to such; use train.noise: gaussian"
        yield Mix(("privacy.noise", "train.noise"), text)
    projection = projection_of(job.features)
    if projection is not None and projection.name == "ldp_pca":
        text = "with ldp_pca each device learns in a basis of its own; use ldp_fpca"
        yield Mix(("aggregation.secure", "features"), text)
    if projection is not None and projection.noise == "wishart":
        yield Mix(("aggregation.secure", "features"), "Wishart noise has no bound; use gaussian")


def _correlated(plan: Plan) -> Iterator[Mix]:
    job, stages = plan.job, plan.context.stages
    given, asked = job.privacy, job.selection.devices
    if given.noise != "correlated":
        for key in ("min_separation", "local_share"):
            if key in given.model_fields_set:
                yield Mix((f"privacy.{key}", "privacy.noise"), "is of noise: correlated alone")
        return
    if given.min_separation is None:
        text = "correlated noise needs privacy.min_separation; set at most the number of devices in"
        yield Mix(("privacy.noise",), f"{text} the fleet divided by selection.devices")
    if not stages or not stages[-1].correlates:
        text = "is noise of the stage gradient_gaussian; put it last under update, or use shared"
        yield Mix(("privacy.noise", "update"), text)
    if asked == "all":
        text = "updates are divided by a public number; name a number of devices"
        yield Mix(("selection.devices", "privacy.noise"), text)
    if job.selection.over_select != 1:
        text = "devices take turns with correlated noise; leave over_select out"
        yield Mix(("selection.over_select", "privacy.noise"), text)
    for key, fits, text in (
        ("aggregation.groups", job.aggregation.groups == 1, "a sum of its own each; leave it out"),
        ("round.mode", job.round.mode == "sync", "noise of a late round stays; use mode: sync"),
        ("unsupervised.eval_type", not plan.sums_inferences, "has no noise to take back; leave it"),
    ):
        if not fits:
            yield Mix((key, "privacy.noise"), f"with correlated noise: {text}")


def _groups(job: Job) -> Iterator[Mix]:
    rule, groups = job.aggregation.name, job.aggregation.groups
    of_groups = AGGREGATIONS[rule].of_groups
    if rule == "fedavg" and groups > 1:
        text = "groups are of no use to fedavg; leave them out, or choose trimmed_mean"
        yield Mix(("aggregation.groups", "aggregation.name"), text)
    elif rule != "fedavg" and not (of_groups and groups > 1):
        way = "set aggregation.groups, " if of_groups else ""
        text = f"'{rule}' needs single updates, which secure sums hide; {way}use fedavg, or"
        keys = ("aggregation.secure", "aggregation.name", "aggregation.groups")
        yield Mix(keys, f"{text} leave secure out")
    if groups > 1 and job.round.min_batch < 2 * groups:
        text = f"would show a single upload; set round.min_batch to at least {2 * groups}"
        yield Mix(("aggregation.groups", "round.min_batch"), text)


def _sum_room(plan: Plan) -> Iterator[Mix]:
    summed = {s.name: s for round in plan.planned for s in plan.segments(round) if s.bits}
    inferred = summed.pop(SOFTMAX, None)
    lower = "lower data.nominal_records"
    sums = [("aggregation.secure", "devices' sums do", lower, spec) for spec in summed.values()]
    if inferred is not None:
        key, what = "encrypt.laplace_eval.laplace_eval_eps", "sum of the devices' noised softmax"
        sums.append((key, f"{what} does", "raise laplace_eval_eps", inferred))
    for phase, key, _ in _evaluations(plan.job) if plan.context.summed else ():
        (counts,) = plan.segments(PlannedRound(0, phase, 0))
        sums.append((key, "sum of the devices' noised counts does", "raise its epsilon", counts))
    reported: set[str] = set()
    for key, what, way, spec in sums:
        try:
            Ring(spec.count, spec.bits)
        except CryptoError as error:
            if what not in reported:
                text = f"the {what} not fit the largest ring, {error.what}; {way}, or name fewer"
                keys = (key, "selection.devices", "data.nominal_records", "privacy.epsilon")
                yield Mix(keys, f"{text} devices in selection.devices")
            reported.add(what)


def _own_bases(job: Job) -> Iterator[Mix]:
    """Yield settings that need a common basis although each device has its own PCA."""
    projection = projection_of(job.features)
    if projection is None or projection.name == "ldp_fpca":
        return
    if projection.name == "ldp_pca" and job.selection.devices != "all":
        text = "with ldp_pca a device builds on its first answer; select all, or use ldp_fpca"
        yield Mix(("selection.devices", "features"), text)
    for key in _evaluation_keys(job) if projection.name == "local_pca" else ():
        text = "with local_pca the cloud has no basis to evaluate with; use ldp_fpca, or leave"
        keys = (key.replace("every_rounds", "eval_type"), "unsupervised.every_rounds", "features")
        yield Mix(keys, f"{text} {key.partition('.')[0]} out")


def _prices(plan: Plan, fleet: KnownFleet | None) -> Iterator[Mix]:
    job, noised = plan.job, True
    with suppress(PrivacyError):  # raised if noise needs a chosen ε
        noised = plan.adds_noise
    if job.privacy.epsilon is None and noised:
        yield Mix(("privacy.epsilon",), "is missing and has no default; set for example epsilon: 8")
        return
    inferred = list(_evaluation_prices(plan))
    try:
        plan.device.price(plan.planned[0])
    except PrivacyError as error:
        text = f"ε = {number(plan.context.epsilon)} with δ = {number(job.privacy.delta)} cannot be"
        keys = ("privacy.epsilon", "privacy", "train", "data", "features")
        yield Mix(keys, f"{text} met, {error.what}; {error.fix}")
    else:
        if not inferred:
            yield from _sum_room(plan)
        yield from _aggregation(plan, fleet)
        yield from _claims(plan)
    yield from inferred


def _evaluation_prices(plan: Plan) -> Iterator[Mix]:
    asked: list[tuple[str, float, Callable[[], object]]]
    asked = [
        (key, e, partial(plan.price, PlannedRound(0, of, 0), trains=False))
        for of, key, e in _evaluations(plan.job)
    ]
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
    """Yield (phase, key of ε, ε) of the evaluations that a job requests."""
    asked, epsilon = job.federated_evaluation, job.unsupervised.epsilon
    if asked is not None:
        yield EVALUATE, "federated_evaluation.epsilon", asked.epsilon
    if job.cluster_every and epsilon is not None:
        yield CLUSTER, "unsupervised.epsilon", epsilon
    if job.statistics is not None:
        yield ASK, "statistics.epsilon", job.statistics.epsilon


def _aggregation(plan: Plan, fleet: KnownFleet | None) -> Iterator[Mix]:
    """Yield a rule that is undefined on the uploads, or needs more uploads than possible."""
    job = plan.job
    rule, name, method = plan.rule, job.aggregation.name, job.train.method
    train = next(one for one in plan.planned if one.phase == TRAIN)
    if not rule.sums and plan.cloud.aim(plan.cloud.initial_state(), train) is None:
        others = ", ".join(one for one in AGGREGATIONS if AGGREGATIONS[one].rule.sums)
        text = f"'{name}' compares updates of weights, and is undefined on the sums of '{method}'"
        yield Mix(("aggregation.name", "train.method"), f"{text}; use {others}")
    elif rule.whole and len(plan.cloud.segments(train)) > 1 and plan.sets == 1:
        way = "set proxy.shuffle to whole" if trains_model(method) else "use fedavg"
        text = f"'{name}' compares whole updates, but the proxy shuffles layer by layer; {way}"
        yield Mix(("aggregation.name", "proxy.shuffle"), text)
    asked, most = job.selection.devices, math.inf if fleet is None else fleet.trainers
    if asked != "all":
        most = min(most, rounded_up(asked, job.selection.over_select))
    if plan.sets > 1 and rule.least > plan.sets:
        text = f"'{name}' needs {rule.least} means, and there are {plan.sets} groups; set at"
        at = ("aggregation.groups", "aggregation.k", "aggregation.malicious")
        yield Mix(at, f"{text} least {rule.least}, or lower its requirement")
    elif plan.sets == 1 and rule.least > max(job.round.min_batch, most):
        text = f"'{name}' needs {rule.least} uploads as it is set, and at most {most:.0f} can come"
        keys = ("aggregation.k", "aggregation.malicious", "aggregation", "selection.devices")
        yield Mix(keys, f"{text}; lower its requirement, or select more devices")


def _claims(plan: Plan) -> Iterator[Mix]:
    """Yield training releases without a proven guarantee unless the job accepts them."""
    events = [event for round in plan.planned for event in plan.device.price(round)]
    unproven = sorted({event.what for event in events if event.status != "proven"})
    if unproven and not plan.job.privacy.accept_unproven:
        text = f"no guarantee is proven for: {', '.join(unproven)}; choose a proven variant, or"
        keys = ("privacy.accept_unproven", "features", "train")
        yield Mix(keys, f"{text} write `privacy: {{accept_unproven: true}}`")
