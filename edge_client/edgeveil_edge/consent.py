"""The owner's consent: jobs are judged by policy and budget, never by records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from edgeveil import plugins
from edgeveil.config.policy import Policy
from edgeveil.data.records import MAX_BYTES
from edgeveil.data.schema import DataSchema
from edgeveil.errors import DataError, EdgeVeilError, PrivacyError, UsageError
from edgeveil.jobs.artifacts import carried_digests
from edgeveil.jobs.plan import Plan
from edgeveil.parts.sources import require_header
from edgeveil.privacy.ledger import LEDGER_FILE, Ledger
from edgeveil.privacy.policy import Limits

if TYPE_CHECKING:
    from edgeveil.config.edge import EdgeSite
    from edgeveil.protocol.messages import Manifest
    from edgeveil.protocol.sealed import ReleasePackage

_USED_UP = (  # limits that are used up over time, unlike limits on a single job
    *("lifetime_epsilon", "lifetime_collusion_epsilon", "lifetime_delta"),
    *("max_inference_epsilon", "max_inference_record_epsilon", "statistics_epsilon"),
)


def limits_of(policy: Policy) -> Limits:
    named = {one.name: getattr(policy, one.name) for one in fields(Limits)}
    named["max_collusion_epsilon_per_job"] = policy.collusion_epsilon_per_job
    named["lifetime_collusion_epsilon"] = policy.collusion_epsilon_in_all
    return Limits(**named)


def refusals(
    policy: Policy, plan: Plan, *, trains: bool, header: bool = False
) -> Iterator[PrivacyError]:
    """Yield the policy's objections to a job; `header`: the device's file names its columns."""
    job = plan.job

    def against(key: str, why: str, fix: str = "") -> PrivacyError:
        return PrivacyError(why, where=f"policy.{key}", fix=fix)

    asks = ["statistics"] if job.statistics is not None else []
    for method in [job.train.method, *asks] if trains else asks:
        if method not in policy.allowed_methods:
            yield against("allowed_methods", f"method '{method}' is not allowed")
    if why := plugins.refusal(job.part_names, policy.allowed_plugins):
        fix = "if you trust it, add the output of `edgeveil methods digest NAME`"
        yield against("allowed_plugins", why, fix)
    for digest in carried_digests(job):
        if digest not in policy.allowed_backbones:
            why = f"the job's backbone or frozen weights {digest} may not run on the data"
            fix = "add this digest if you trust the model"
            yield against("allowed_backbones", why, fix)
    for function in job.functions if trains else ():
        if why := _python_refusal(policy, function):
            fix = f"if you trust the code, add the output of `edgeveil methods digest {function}`"
            yield against("allowed_python_models", why, fix)
    asked = job.asked_schema
    for key, schema, columns in (
        ("allowed_columns", job.data.schema_, policy.allowed_columns),
        ("allowed_columns", asked or job.data.schema_, policy.allowed_columns),
        ("statistics_columns", asked, policy.statistics_columns if asked else None),
    ):
        if columns is not None and (why := _columns_refusal(schema, columns, header=header)):
            yield against(key, why, "add it if jobs may read that")
            break
    if job.proxy.shuffle == "none" and not policy.accept_unshuffled:
        why = "the proxy would forward uploads in their order of arrival"
        yield against("accept_unshuffled", why)
    if trains and plan.shows_counts and not policy.allow_record_counts:
        yield against("allow_record_counts", "the uploads would tell the number of records")
    values = max(math.prod(job.record_shape(phase)) for phase in job.phases_read)
    most = policy.max_records
    if 4 * values * most > MAX_BYTES:
        why = f"{most} records would not fit memory as the job reads them, {values} values each"
        yield against("max_records", why, "lower it to the most that this box will ever hold")
    budget_s, longest_s = job.round.time_budget_s, policy.max_budget_s
    if budget_s > longest_s:
        why = f"a round's time budget is {budget_s:g} s, the owner allows {longest_s:g} s"
        yield against("max_budget_s", why, "raise it if the box may compute for so long")


def _python_refusal(policy: Policy, function: str) -> str:
    allowed = {one.sha256 for one in policy.allowed_python_models if one.function == function}
    if not allowed:
        return f"the job runs Python code, {function}, which may not run here"
    try:
        here = plugins.code_digest(function)
    except UsageError as error:
        return f"the job's code {function}: {error.what}"
    if here in allowed:
        return ""
    return f"{function} has other files here than the owner allows, their digest is {here}"


def _columns_refusal(schema: DataSchema | None, allowed: Sequence[str], *, header: bool) -> str:
    if schema is None:
        read = {} if "*" in allowed else {"*": "all columns, because it has no schema"}
    elif schema.kind != "columns":  # pictures have no columns, but what is asked of them
        parts = [f"{one.name}:{one.part}" for one in schema.columns or ()]
        read = {name: f"column {name!r}" for name in parts}
    else:
        named = schema.read_columns
        named_by_job = None if header else schema.header
        at = {name: f"#{place}" for place, name in enumerate(named_by_job or (), start=1)}
        # A header in the schema is chosen by the job: identify columns by position then.
        read = {
            name if named_by_job is None else at.get(name, name): f"column {name!r}"
            + (f", the file's {at[name]}" if name in at else "")
            for name in named
        }
    for one in allowed:
        read = {k: text for k, text in read.items() if k != one and not fnmatchcase(k, one)}
    refused = list(read.values())
    more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    return f"the job reads {refused[0]}{more}" if refused else ""


def too_few(policy: Policy, selected: int) -> PrivacyError | None:
    if selected >= policy.min_devices:
        return None
    what = f"{selected} devices are selected, the owner requires {policy.min_devices}"
    return PrivacyError(what, where="policy.min_devices")


def judge(site: EdgeSite, plan: Plan, selected: int | None = None) -> None:
    """Raise PrivacyError if the policy refuses the job, or a round with `selected` devices."""
    wanted = plan.job.data.source
    if wanted != site.data.name:
        what = f"the job is for data '{wanted}', this device holds '{site.data.name}'"
        raise PrivacyError(what, where="data.name")
    data, trains = site.data, site.role == "train"
    try:
        for phase in plan.job.phases_read:
            require_header(data.source, data.header, plan.job.reading(phase)[1])
    except DataError as error:
        raise PrivacyError(error.what, where=error.where, fix=error.fix) from None
    for refusal in refusals(site.policy, plan, trains=trains, header=data.header is not False):
        raise refusal
    if selected is not None and (few := too_few(site.policy, selected)):
        raise few


def decline_cause(error: EdgeVeilError) -> str:
    """Return one of `DECLINE_CAUSES` by the error's key, so that no text leaves the box."""
    section, _, key = error.where.rpartition(".")
    if error.where in ("conditions", "policy.max_jobs"):  # temporary causes
        return "conditions"
    if Path(error.where).stem == Path(LEDGER_FILE).stem:  # an old or broken ledger
        return "fault"
    if section != "policy":
        return "fit"
    return "budget" if key in _USED_UP else "policy"


def consent(site: EdgeSite, plan: Plan, manifest: Manifest, ledger: Ledger) -> None:
    """Reserve the whole job's price. Raises PrivacyError; reads no record."""
    judge(site, plan, manifest.selected)
    request = plan.request(manifest.at.job_id.hex(), trains=site.role == "train")
    ledger.open_job(request, limits_of(site.policy))


def release_refusal(
    site: EdgeSite, package: ReleasePackage, job_id: str, plan: Plan | None, ledger: Ledger
) -> str:
    """Return the policy's objection to a release, or ""; `plan` is its job's, if known."""
    accepts, answered = site.policy.accept_releases, ledger.answered(job_id)
    if accepts == "none":
        return "the owner accepts no releases (policy.accept_releases)"
    if accepts == "joined" and not answered:
        return "this device had no part in its job (policy.accept_releases: joined)"
    if plan is None:
        if package.data_set == site.data.name:
            return ""
        named = f"'{package.data_set}'" if package.data_set else "a job unknown to this device"
        return f"it is for {named}, this device holds '{site.data.name}'"
    try:
        judge(site, plan)
        if not answered:
            ledger.check(plan.request(job_id, trains=site.role == "train"), limits_of(site.policy))
    except EdgeVeilError as error:
        return f"its job is declined here: {error}"
    return "" if plan.releases else "its job learned no model"
