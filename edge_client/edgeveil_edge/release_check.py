"""Whether the owner lets a final model be put in use here."""

from __future__ import annotations

from edgeveil.errors import EdgeVeilError
from edgeveil.jobs.plan import Plan
from edgeveil.privacy.ledger import Ledger
from edgeveil.protocol.sealed import ReleasePackage
from edgeveil.sites.edge import EdgeSite
from edgeveil_edge.consent import judge, limits_of


def against(
    site: EdgeSite, package: ReleasePackage, job_id: str, plan: Plan | None, ledger: Ledger
) -> str:
    """The owner's reason against a release, or ""; `plan` is its job's where that is known here."""
    accepts, answered = site.policy.accept_releases, ledger.answered(job_id)
    if accepts == "none":
        return "the owner accepts no releases (policy.accept_releases)"
    if accepts == "joined" and not answered:
        return "this device had no part in its job (policy.accept_releases: joined)"
    if plan is None:
        if package.data_set == site.data.name:
            return ""
        named = f"'{package.data_set}'" if package.data_set else "a job that is not known here"
        return f"it is for {named}, this device holds '{site.data.name}'"
    try:
        judge(site, plan)
        if not answered:
            ledger.check(plan.request(job_id, trains=site.role == "train"), limits_of(site.policy))
    except EdgeVeilError as error:
        return f"its job is declined here: {error}"
    return ""
