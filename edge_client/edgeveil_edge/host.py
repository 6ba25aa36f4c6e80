"""Host of a device's protocol machine: opens packages, installs, answers and stores."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from secrets import SystemRandom

from msgspec import structs

from edgeveil.config.edge import EdgeSite
from edgeveil.errors import DataError, EdgeVeilError, ProtocolError
from edgeveil.privacy.derived import NoiseByContext, noise_by_context
from edgeveil.privacy.ledger import Ledger
from edgeveil.privacy.policy import INFER
from edgeveil.protocol import device as machine
from edgeveil.protocol import device_round as rounds
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol import sealed as real_sealing
from edgeveil.protocol.sealed import ReleasePackage, RoundPackage, Sealing, decode_package
from edgeveil.trust.bundle import StoredTrust
from edgeveil.trust.trusted_keys import take_trust
from edgeveil_edge.compute import Compute, Computer
from edgeveil_edge.consent import limits_of
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_edge.releases import ReleaseStore, keep_personal
from edgeveil_edge.round_work import RoundWork
from edgeveil_edge.store import DeviceStore

LOG = logging.getLogger("edgeveil.edge")
_MEMBERSHIP_BYTES = 32
_SLUG = re.compile(r"[a-z_]{1,40}")
_KEY = re.compile(r"policy\.[a-z_]{1,40}")
# Console lines for the owner, and whether the log gets a warning.
_LINES = {
    "counted": (False, "job {job}, round {round}: {counted} of {segments} counted"),
    "declined": (True, "job {job}, round {round} declined: {why}"),
    "failed_work": (True, "work for the cloud failed: {why}"),
    "release_withdrawn": (True, "the cloud withdrew the release that was in use"),
    "model_installed": (False, "the job's final model is in use; try edgeveil predict"),
    "over_the_broker": (True, "large data is sent over the broker instead of out of band: {why}"),
    "trust_changed": (False, "the root's delegations, version {version}, are in use"),
    "uncovered": (True, "job {job}, round {round} is not covered: {why}"),
    "unheard": (True, "the proxy does not answer; has its operator admitted this device?"),
    "upload_refused": (True, ""),
}


@dataclass
class _OpenedRound:
    blob: bytes  # digest of the sealed package
    membership: bytes
    tensors: bytes = b""
    model: bytes = b""

    def whole(self, package: RoundPackage) -> RoundPackage:
        whole = structs.replace(package, tensors=self.tensors, model=self.model)
        self.tensors = self.model = b""
        return whole


@dataclass(frozen=True)
class DeviceChance:
    """Randomness: `noise_for` (default: from the ledger's key), and `moment` in [0, 1)."""

    noise_for: NoiseByContext | None = None
    moment: Callable[[], float] = SystemRandom().random


class DeviceHost:
    """Performs one device's tasks. The device's name appears only on its console."""

    def __init__(
        self,
        site: EdgeSite,
        identity: DeviceIdentity,
        store: DeviceStore,
        ledger: Ledger,
        random: DeviceChance | None = None,
        on_message: Callable[[str], None] = lambda _line: None,
        sealing: Sealing = real_sealing,
        compute: Compute | None = None,
        trust: StoredTrust | None = None,
    ) -> None:
        self.site, self.identity, self._sealing, self._trust = site, identity, sealing, trust
        self._store, self._ledger, self._notify = store, ledger, on_message
        chance = random or DeviceChance()
        self.moment = chance.moment
        noise_for = chance.noise_for or noise_by_context(ledger.noise_key())
        compute = compute or Computer(site, identity.split_key)
        self._work = RoundWork(
            site, identity, store, ledger, noise_for, compute, sealing, on_message
        )
        self.releases = ReleaseStore(site.state_dir / "releases")
        self.releases.follow(site.policy.on_expired_release)
        self.unheard = False  # whether the proxy did not answer since the last check
        self._stale = ""  # the last warning about a release that is not renewed
        self._rounds: dict[bytes, _OpenedRound] = {}  # the newest of each job

    def pause(self, paused: bool) -> None:
        self._work.paused = paused

    def store(self, item: object) -> None:
        """Store durably before the next effect; inside `together`, at the end of the block."""
        if isinstance(item, machine.JobClosed):
            # The ledger first: a reservation must not outlive its job.
            job = item.job_id.hex()
            keep_personal(self.site.state_dir, job, self._ledger.kept(job))
            self._ledger.close_job(job)
            self._work.forget(item.job_id)
            self._rounds.pop(item.job_id, None)
            policy, alone = self.site.policy, ""
            train = self._ledger.spent(delta=policy.lifetime_delta)
            infer = self._ledger.spent(purpose=INFER, delta=policy.lifetime_delta)
            if train.if_colluding is not None:
                alone = f", if all others collude {policy.collusion_epsilon_in_all:g}"
            self._notify(
                f"job {m.short_name(item.job_id)} ended, {item.status};"
                f" spent on '{self.site.data.name}' so far:"
                f" training: {train} (limit ε = {policy.lifetime_epsilon:g}{alone});"
                f" inference: {infer} (limit ε = {policy.max_inference_epsilon:g})"
            )
            refusal = self._ledger.next_refusal(limits_of(policy))
            if refusal is not None:
                self._notify(f"one more job like it would be declined: {refusal}")
        self._store.store(item)

    def together(self) -> AbstractContextManager[None]:
        return self._store.together()

    def report(self, report: fx.Report) -> None:
        """Print a line on the owner's console; log it without the device's name."""
        self.unheard |= report.kind == "unheard"
        warns, line = _LINES.get(report.kind, (False, ""))
        # A free-text reason may quote a path or a record: print it on the console only.
        extra = {k: v for k, v in report.data.items() if k != "why" or _SLUG.fullmatch(str(v))}
        if report.kind == "declined" and report.at is not None:
            why, job_id = str(report.data["why"]), report.at.job_id
            if (key := _KEY.match(why)) is not None:
                extra["key"] = key[0]
            refusal = {"time_s": round(time.time(), 3), "job_id": job_id.hex(), "why": why}
            refusal |= {"round": report.at.round, "cause": report.data["cause"]}
            self._store.note_refusal(refusal | {"job": self._store.job_name(job_id)})
        LOG.log(logging.WARNING if warns else logging.DEBUG, report.kind, extra=extra)
        if line:
            self._notify(line.format(**report.data))

    def perform(self, task: object) -> object:
        problem = self._trust.problem if self._trust else ""
        match task:
            case machine.FindStanza(manifest=manifest, stanzas=stanzas):
                keys = (self.identity.opening, self.identity.opening_before)
                listed = (self._sealing.is_listed(key, manifest, stanzas) for key in keys if key)
                return machine.StanzaLook(any(listed))
            case rounds.OpenPackage(manifest=manifest, blob=blob):
                return self._open(manifest, blob)
            case machine.InstallJob(manifest=manifest, package=package):
                if hashlib.sha256(package.job).digest() != manifest.job_digest:
                    raise ProtocolError("wrong_job")
                self._work.install_job(manifest, package.job, package.graph, package.backbones)
                return machine.Installation()
            case fx.TakeTrust(metadata=metadata):
                return take_trust(self._trust, metadata, self.site.cell)
            case rounds.ComputeAnswer() | machine.InstallRelease() if problem:
                self._notify(f"nothing is done for the cloud: {problem}")
                if isinstance(task, machine.InstallRelease):
                    return fx.WorkFailed("trust_expired")
                return rounds.NoAnswer(problem, "conditions")
            case rounds.ComputeAnswer(manifest=manifest, package=RoundPackage() as package):
                opened = self._rounds.get(manifest.at.job_id)
                if opened is None or opened.blob != manifest.blob.digest:
                    return self._work.answer(task, package, None)
                # No other reference: tensors are freed on use, before the answer is sealed.
                return self._work.answer(task, opened.whole(package), opened.membership)
            case rounds.SealDummies(manifest=manifest, round_key=round_key):
                return self._work.dummies(manifest, round_key)
            case machine.InstallRelease(manifest=manifest, package=package):
                return self._install(manifest, package)
            case machine.AdoptRelease(manifest=manifest):
                return self._adopt(manifest)
            case machine.SealReport(manifest=manifest):
                return self._report(manifest)
            case machine.ApplyStatement(statement=statement):
                return self._apply(statement)
            case machine.CountElsewhere(behind=behind):
                return self._count_elsewhere(behind)
        return fx.WorkFailed("malformed_package")

    def _open(self, manifest: m.Manifest, blob: bytes) -> rounds.OpenedPackage:
        opened = self._sealing.open_broadcast(self.identity.opening, manifest, blob)
        before = self.identity.opening_before
        if before is not None:
            if opened is None:
                opened = self._sealing.open_broadcast(before, manifest, blob)
            else:  # the cloud already seals to the new key
                self.identity = self.identity.settled(self.site.state_dir)
        chance = self.moment()
        if opened is None:
            return rounds.OpenedPackage(None, chance)
        package, membership = opened
        if manifest.kind != "round":
            if m.wants_reports(manifest):
                self._note_fate(manifest, membership=membership.hex())
            return rounds.OpenedPackage(decode_package(package), chance)
        decoded = decode_package(package)
        opened_round = _OpenedRound(manifest.blob.digest, membership)
        self._rounds[manifest.at.job_id] = opened_round
        if isinstance(decoded, RoundPackage):
            # The machine keeps the package without tensors and model while it answers.
            opened_round.tensors, opened_round.model = decoded.tensors, decoded.model
            decoded = structs.replace(decoded, tensors=b"", model=b"")
        return rounds.OpenedPackage(decoded, chance, *self._work.times_s(manifest))

    def _install(self, manifest: m.Manifest, package: ReleasePackage) -> object:
        if manifest.sequence in json.loads(self._store.fact("releases_withdrawn") or "[]"):
            return fx.WorkFailed("withdrawn_release")
        outcome, why = self._work.judge_release(manifest, package)
        digest = hashlib.sha256(package.onnx).hexdigest()
        if not why and self.releases.broke(digest):
            outcome = m.ReleaseOutcome.ROLLED_BACK
        self._note_fate(manifest, outcome=outcome.value, digest=digest)
        if why:
            self._notify(f"a release of job '{package.job_name[:64]}' is not put in use: {why}")
            return fx.WorkFailed("refused_release")
        meta = {"job_id": manifest.at.job_id.hex(), "sequence": manifest.sequence}
        meta |= {"package": manifest.package_digest.hex(), "expires_s": package.expires_s}
        self.releases.install(package.job_name, package.onnx, meta)
        self._store.put_fact("release_sequence", str(manifest.sequence))
        self._store.put_fact("release_package", manifest.package_digest.hex())
        return machine.Installation()

    def look_at_release(self, now_s: float) -> str:
        """Warn once if the release in use is stale at `now_s` (since 1970); return why, or ""."""
        try:
            release = self.releases.current()
        except EdgeVeilError:
            return ""
        before, self._stale = self._stale, release.stale(now_s) if release else ""
        if self._stale and self._stale != before:
            LOG.warning("release_stale")
            self._notify(f"{self._stale}, so a newer one may be withheld")
        return self._stale

    def _adopt(self, manifest: m.Manifest) -> machine.Installation:
        now = self.releases.current()
        if now is not None and now.meta.get("package") == manifest.package_digest.hex():
            self.releases.adopt(manifest.sequence)
        self._store.put_fact("release_sequence", str(manifest.sequence))
        return machine.Installation()

    def _note_fate(self, manifest: m.Manifest, **news: str) -> None:
        blob = manifest.blob.digest.hex()
        fate = {"membership": "", "outcome": "", "digest": "", **self._fate(manifest), **news}
        self._store.put_fact("release_fate", json.dumps({"blob": blob, **fate}))

    def _fate(self, manifest: m.Manifest) -> dict[str, str]:
        fate: dict[str, str] = json.loads(self._store.fact("release_fate") or "{}")
        return fate if fate.get("blob") == manifest.blob.digest.hex() else {}

    def _report(self, manifest: m.Manifest) -> machine.MadeReport:
        """Seal the release's outcome, or a dummy; a rollback by the owner is not reported."""
        fate = self._fate(manifest)
        membership, content = bytes.fromhex(fate.get("membership", "")), b""
        if membership and fate["outcome"]:
            outcome = m.ReleaseOutcome(fate["outcome"])
            if outcome is m.ReleaseOutcome.IN_USE and self.releases.broke(fate["digest"]):
                outcome = m.ReleaseOutcome.ROLLED_BACK
            content = outcome.to_bytes()
        membership = membership or os.urandom(_MEMBERSHIP_BYTES)
        sealed = self._sealing.seal_segment(manifest, m.HEALTH, membership, content)
        return machine.MadeReport(sealed)

    def _apply(self, news: m.ReleaseStatement) -> machine.StatementApplied:
        self._store.put_fact("releases_withdrawn", json.dumps(news.withdrawn))
        left = self.releases.apply(news.renewed, news.withdrawn, news.expires_s)
        if left:
            self._store.put_fact("release_package", "")
            try:
                now = self.releases.current()
            except DataError as error:
                self._notify(f"the release before the withdrawn one is damaged: {error}")
            else:
                self._notify(f"{now.version if now else 'no release'} is in use from now on")
        self._store.put_fact("release_statement", str(news.number))
        return machine.StatementApplied(left)

    def _count_elsewhere(self, behind: m.Behind) -> machine.Installation:
        """Charge the ledger first: until then, nothing more may be answered."""
        for job in behind.jobs:
            self._ledger.count_answer_of_copy(job.job_id.hex(), job.encrypted_state)
            self._work.forget(job.job_id)
        if not behind.whole:
            self._ledger.count_unknown_answers()
        self._store.put_fact("answered", str(behind.answered))
        spent = self._ledger.spent(delta=self.site.policy.lifetime_delta)
        self._notify(
            "this state is older than the proxy's: a copy of this device has answered, or an older"
            " state was restored. Later answers are charged here, each job with all that it"
            f" reserved; spent on '{self.site.data.name}' so far: training: {spent}"
        )
        LOG.warning("behind", extra={"jobs": len(behind.jobs), "whole": behind.whole})
        return machine.Installation()

    def warm_up(self) -> None:
        try:
            self.releases.current()
        except DataError as error:
            left = self.releases.leave_broken()
            self._notify(f"the release in use is damaged, {left}: {error}")
        self._work.warm_up()
