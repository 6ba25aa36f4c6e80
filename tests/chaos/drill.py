"""The trust drill: what befalls the trust of a planned fleet, mended as an operator would.

A copied device and a lost registry are played by tests/e2e/test_copies.py and test_trust.py.
"""

from __future__ import annotations

import asyncio
import datetime
import re
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from edgeveil.config.cloud import CloudSite
from edgeveil.config.site_files import load_site
from edgeveil.crypto.authorities import Authority, certificate_pem
from edgeveil.crypto.keys import SealingKey, SigningKey
from edgeveil.errors import EdgeVeilError, JobFailed
from edgeveil.privacy.ledger import LEDGER_FILE, read_ledger
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import ExchangeId, Manifest, Signer, encode
from edgeveil.protocol.sealed import ReleasePackage, Terms, encode_package, seal_broadcast
from edgeveil.protocol.transfer import part_bytes, sends
from edgeveil.transport.link import LinkSettings, Topics
from edgeveil.transport.mqtt_link import MqttLink, link_settings
from edgeveil_cloud.stored_jobs import wire_id
from edgeveil_tools.cloud_client import Cloud, get_json
from edgeveil_tools.lifeline import Lifeline
from edgeveil_tools.local.children import signal_group, spawn
from edgeveil_tools.site.brokers import free_ports
from edgeveil_tools.site.fleet_plan import PLAN_FILE
from tests.chaos.drill_checks import DrillAct, DrillEvidence, DrillNotes
from tests.chaos.evidence import device_facts, stored_jobs, tap_ledger
from tests.chaos.run import CloudJobs, release_in_use

JOB = Path(__file__).parent / "drill.yaml"
DEVICES = 7  # of which one is revoked
CLAIMED = "box-ward"  # comes later, with a claim
BROKERS = ("broker-edge", "broker-cloud")
SERVERS = (*BROKERS, "cloud", "proxy")
CLOUD_STORE = "cloud.sqlite"
AHEAD_S = 20 * 3600.0  # a proxy takes no number that is a day ahead of its clock
_COMMAND_S, _STOP_S, _LOOK_S = 120.0, 15.0, 0.25
_WAIT_S = 180.0  # a device that was refused for long tries more rarely
_PAST_DAYS = 397
_EXPIRED = r"certificate[^\n]*(?:it has ended|expired)"


# --- the planned fleet: bundles in their places, each party a process ---


class DrillFleet:
    """Plans and applies a site and installs every bundle by an operator's commands.

    Logs go to `logs/<name>.log`. Raises JobFailed where a command is refused.
    """

    def __init__(self, folder: Path, logs: Path) -> None:
        self.site, self.places, self.logs = folder / "fleet", folder / "places", logs
        self.places.mkdir()
        self.boxes = tuple(f"box-{number:04}" for number in range(1, DEVICES + 1))
        self.late: list[str] = []
        self._lifeline = Lifeline()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        edge, cloud, self._http, self._proxy_http = free_ports(4)
        self.command("site", "init", str(self.site), "--devices", str(DEVICES))
        plan = yaml.safe_load((self.site / PLAN_FILE).read_text("utf-8"))
        fleet = plan["fleet"]
        for at, port in (("edge_broker", edge), ("cloud_broker", cloud)):
            fleet[at] |= {"listen": f"127.0.0.1:{port}", "public": f"localhost:{port}"}
        fleet["cloud"]["http"]["port"] = self._http
        fleet["proxy"]["http"]["port"] = self._proxy_http
        data = fleet["devices"]["data"]
        fleet["devices"] |= {
            "count": 0,
            "list": [
                {"name": box, "data": data | {"shard": {"devices": DEVICES + 1, "index": at}}}
                for at, box in enumerate(self.boxes)
            ],
            "data": data | {"shard": {"devices": DEVICES + 1, "index": DEVICES}},  # the image's
            "claims": {"admit": "at_once"},
        }
        fleet["devices"]["policy"] |= {
            "lifetime_epsilon": 1_000_000.0,  # many jobs follow one another on the same records
            "lifetime_delta": 0.5,
            "max_inference_epsilon": 1_000_000.0,
            "max_records": 220,  # so that a slow machine too is done in time
        }
        (self.site / PLAN_FILE).write_text(yaml.safe_dump(plan), "utf-8")
        self.operator("apply")
        self.install(*SERVERS, *self.boxes)

    def command(self, *words: str) -> str:
        """Output of `edgeveil WORDS`."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "edgeveil_tools.cli", *words],
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            start_new_session=True,  # a Ctrl-C at the drill does not cut a command in two
        )
        with (self.logs / "operator.log").open("a", encoding="utf-8") as log:
            log.write(f"$ edgeveil {' '.join(words)}\n{done.stdout}{done.stderr}")
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-2000:]
            what = f"`edgeveil {' '.join(words[:2])}`"
            raise JobFailed(f"{what} ended with {done.returncode}: {said}")
        return done.stdout

    def operator(self, name: str, *rest: str) -> None:
        self.command("site", name, str(self.site), *rest, "--no-passphrase")

    def install(self, *names: str) -> None:
        for name in names:
            bundle = self.site / "bundles" / name
            self.command("site", "install", str(bundle), str(self.places / name))

    def rotate_cloud(self) -> None:
        """New keys of the cloud for jobs and releases, handed on in its and the proxy's bundle."""
        self.command("keys", "--config", str(self.config("cloud")), "--next")
        trust = str(self.site / "trust")
        for role, key in (("cloud-jobs", "cloud-next"), ("cloud-releases", "releases-next")):
            new = str(self.state("cloud") / f"{key}.pub")
            self.command("trust", "rotate", trust, role, new, "--no-passphrase")
            self.operator("apply")
            self.install("cloud", "proxy")

    def claim(self, name: str) -> None:
        """Add a box that nobody has prepared: the image, and a claim of its own."""
        lines = self.places / f"{name}.claim"
        config = str(self.config("proxy"))
        self.command("proxy", "admit", "--claim", name, "--config", config, "--out", str(lines))
        image = str(self.site / "bundles" / "image")
        self.command("site", "install", image, str(self.places / name))
        (self.state(name) / "claim").write_text(lines.read_text("utf-8").partition(",")[2], "utf-8")
        self.boxes = (*self.boxes, name)

    def config(self, name: str) -> Path:
        return self.places / name / "edgeveil.yaml"

    def state(self, name: str) -> Path:
        return self.places / name / "state"

    def expire(self, party: str) -> None:
        """Replace its certificate by one of the same authority that ended yesterday."""
        claimed = self.state(party) / "edge.crt"
        path = claimed if claimed.exists() else _leaf_certificate(self.places / party / "tls")
        before = x509.load_pem_x509_certificate(path.read_bytes())
        yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        made = x509.CertificateBuilder(before.issuer, before.subject, before.public_key())
        made = made.serial_number(before.serial_number).not_valid_after(yesterday)
        made = made.not_valid_before(yesterday - datetime.timedelta(days=_PAST_DAYS))
        for one in before.extensions:
            made = made.add_extension(one.value, one.critical)
        authorities = [
            Authority.load(path, path.with_suffix(".key"))
            for path in sorted((self.site / "authorities").glob("*.crt"))
        ]
        (issuer,) = [one for one in authorities if one.certificate.subject == before.issuer]
        path.write_bytes(certificate_pem(made.sign(issuer.key, hashes.SHA256())))

    def start(self, *names: str) -> None:
        for name in names:
            role = "edge" if name.startswith("box") else name.partition("-")[0]
            with (self.logs / f"{name}.log").open("ab") as log:
                words = [role, "--config", str(self.config(name))]
                threads = 1 if role == "edge" else None
                self._processes[name] = spawn(words, log, self._lifeline, threads=threads)

    def stop_one(self, name: str) -> None:
        """SIGTERM, and its end. A process that does not end is killed, and listed as late."""
        process = self._processes.pop(name)
        signal_group(process, signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.late.append(name)
            signal_group(process, signal.SIGKILL)
            process.wait()

    def gone(self) -> list[str]:
        """Processes that have ended by themselves."""
        return [name for name, one in self._processes.items() if one.poll() is not None]

    def stop(self) -> None:
        """End everything, the brokers last; may be called twice."""
        for name in sorted(self._processes, key=lambda name: name in BROKERS):
            self.stop_one(name)
        if not self._lifeline.closed:
            self._lifeline.close()

    def log(self, name: str) -> str:
        path = self.logs / f"{name}.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def online(self) -> int:
        """Number of devices that the proxy sees; 0 while it does not answer."""
        with suppress(OSError):
            found = get_json(f"http://127.0.0.1:{self._proxy_http}", "/status")
            return int(found.get("online", 0))
        return 0

    def cloud(self) -> Cloud:
        return Cloud(f"http://127.0.0.1:{self._http}", self.state("cloud") / "http.token")


def _leaf_certificate(folder: Path) -> Path:
    for path in sorted(folder.glob("*.crt")):
        with suppress(ValueError, x509.ExtensionNotFound):
            found = x509.load_pem_x509_certificate(path.read_bytes())
            if not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
                return path
    raise JobFailed(f"{folder} holds no certificate")


# --- a thief with the cloud's release key and its account at the broker ---


class LeakedKey:
    """Key, account, release and sealing keys, taken from a cloud's box at one moment."""

    def __init__(self, config: Path, state: Path) -> None:
        site = load_site(config)
        assert isinstance(site, CloudSite)
        self._packet_bytes = site.limits.packet_bytes
        self._link = link_settings(site.broker, "thief", self._packet_bytes)
        self._key = SigningKey.load(state / "releases.key")
        with closing(sqlite3.connect(f"file:{state / CLOUD_STORE}?mode=ro", uri=True)) as db:
            keys = db.execute("SELECT public_key FROM enrolled_keys").fetchall()
            (self._onnx,) = db.execute("SELECT onnx FROM releases").fetchone()
        self._recipients = [SealingKey(bytes(key)) for (key,) in keys]

    def forged(self) -> tuple[Manifest, bytes]:
        """A release that opens and runs at every device, and its sealed bytes.

        Its number is about the largest that the proxy takes, so that nothing that the cloud
        sends afterwards counts as newer (a fast-forward attack).
        """
        sequence = int((time.time() + AHEAD_S) * 1000)
        package = ReleasePackage("stolen", self._onnx, "digits")
        at = ExchangeId(secrets.token_bytes(16), 0, 1)
        terms = Terms("release", at, sequence, bytes(32), "release")
        size = part_bytes(self._packet_bytes)
        manifest, data, _ = seal_broadcast(terms, encode_package(package), self._recipients, size)
        return manifest, data

    def publish(self) -> str:
        """Send one; its job on the wire (hex)."""
        manifest, data = self.forged()
        header = Signer("cloud", self._key).header(manifest)
        packets = sends(
            fx.ProxyAddress(), header, manifest.blob, data, self._packet_bytes, push=True
        )
        frames = [encode(one.message) for one in packets if isinstance(one, fx.Send)]
        asyncio.run(_send(replace(self._link, keepalive_s=10), frames))
        return manifest.at.job_id.hex()


async def _send(settings: LinkSettings, frames: list[bytes]) -> None:
    link = MqttLink(settings)
    link.on_message = lambda _topic, _payload: None
    link.on_state = lambda _up, _why: None
    await link.connect_or_raise()
    work = asyncio.ensure_future(link.run_forever())
    try:
        for frame in frames:
            await link.publish(Topics().cloud_out, frame)
        while link.unacknowledged:
            await asyncio.sleep(0.05)
    finally:
        await link.close()
        await work


# --- the acts, in order: each does its harm, then what an operator does about it ---


class ActFailed(JobFailed):
    """What an act waits for did not come."""


class Drill:
    """`play` once, then `stop` and `evidence`. `say` prints a line."""

    def __init__(self, folder: Path, logs: Path, say: Callable[[str], None]) -> None:
        self._begun_s, self._folder, self._logs, self._say = time.monotonic(), folder, logs, say
        say(f"A fleet of {DEVICES} devices is planned and installed; logs in {logs}")
        self.fleet = DrillFleet(folder, logs)
        self.jobs = CloudJobs(self.fleet.cloud, JOB.read_bytes())
        self.notes, self.acts, self.gone = DrillNotes(), list[DrillAct](), list[str]()

    def play(self) -> None:
        """All acts, up to the first that fails: what follows would show nothing."""
        for name, act in ACTS.items():
            with self._act(name):
                act(self)
            if self.acts[-1].failed:
                return

    def stop(self) -> None:
        self.gone += self.fleet.gone()
        self.fleet.stop()

    def evidence(self) -> DrillEvidence:
        """Content of the disks of the stopped fleet."""
        fleet = self.fleet
        stores = (*self.notes.lost_stores, fleet.state("cloud") / CLOUD_STORE)
        return DrillEvidence(
            jobs=tuple(job for store in stores for job in stored_jobs(store)),
            boxes={
                box: device_facts(fleet.state(box), number, trains=True)
                for number, box in enumerate(fleet.boxes, start=1)
            },
            acts=self.acts,
            notes=self.notes,
            logs={path.stem: path.read_text(errors="replace") for path in self._logs.glob("*.log")},
            gone=self.gone,
            late=fleet.late,
        )

    def begin(self) -> None:
        fleet = self.fleet
        fleet.start(*BROKERS)
        for broker in BROKERS:
            self._until(lambda: "listens on" in fleet.log(broker), f"the start of {broker}")  # noqa: B023
        fleet.start("cloud", "proxy", *fleet.boxes)
        self._until(self.jobs.look, "the cloud's start")
        self._until(self._all_online, "all hellos")
        for box in fleet.boxes:
            tap_ledger(fleet.state(box) / LEDGER_FILE)
        self._step(f"{DEVICES} devices are there")
        self._one_job("a first job of all devices")
        out = fleet.boxes[-1]
        self.notes.revoked[out] = tuple(self.jobs.names)
        fleet.operator("revoke", out)
        fleet.install("broker-edge", "proxy")
        self._until(self._all_online, "the revoked device's end")
        self._one_job(f"{out} is revoked and cut off; a job of the others")

    def leaked_key(self) -> None:
        fleet, jobs = self.fleet, self.jobs
        thief = LeakedKey(fleet.config("cloud"), fleet.state("cloud"))
        jobs.feeding, jobs.resuming = True, False
        self._until(lambda: jobs.going and jobs.committed, "a job under way")
        job, begun_s = jobs.going, time.monotonic()
        forged = thief.publish()
        self._until(lambda: self._in_use() == {forged}, "the forged release at every device")
        self._step("a forged release with the largest number that is taken is in use everywhere")
        fleet.rotate_cloud()
        jobs.resuming = True
        self._until(lambda: job in jobs.completed, "the end of the job under way")
        self._step(f"the job under way goes on, {time.monotonic() - begun_s:.1f} s after the theft")
        self._rest()
        self._last_release()
        again = thief.publish()
        self._one_job("the thief sends one more, and a job goes on")
        self._last_release()
        if again in self._in_use():
            raise ActFailed("a release of the leaked key was put in use after the rotation")

    def cloud_lost(self) -> None:
        fleet, jobs, store = self.fleet, self.jobs, self.fleet.state("cloud") / CLOUD_STORE
        self._rest()
        fleet.stop_one("cloud")
        with closing(sqlite3.connect(store)) as db, db:
            db.execute("UPDATE sequence SET last = ?", (int((time.time() + AHEAD_S) * 1000),))
        fleet.start("cloud")
        self._until(jobs.look, "the cloud's start")
        self._one_job("a job numbered by a clock that is 20 hours ahead")
        self._last_release()
        fleet.stop_one("cloud")
        lost = self._folder / "cloud-lost"
        lost.mkdir()
        for path in store.parent.glob(f"{CLOUD_STORE}*"):
            path.rename(lost / path.name)
        self.notes.lost_stores.append(lost / CLOUD_STORE)
        fleet.start("cloud")
        self._until(jobs.look, "the cloud's start")
        jobs.resuming = False
        job = jobs.submit()
        self._until(lambda: jobs.status(job)[0] == "paused", "the pause")
        paid = [box for box in self._remaining() if self._paid(box, job)]
        if paid or jobs.committed:
            raise ActFailed(f"{', '.join(paid) or 'nobody'} paid for a job that could not begin")
        self._step(f"it numbers anew, which no device follows: {jobs.status(job)[1]}")
        fleet.rotate_cloud()
        jobs.resuming = True
        self._until(lambda: job in jobs.completed, "the end of the paused job")
        self._last_release()
        self._step("numbers begin anew with new keys: the job goes on, its release is in use")

    def device_expired(self) -> None:
        fleet, box = self.fleet, CLAIMED
        self._rest()
        fleet.claim(box)
        fleet.start(box)
        self._until(self._all_online, "the box with a claim")
        self._until(self._all_enrolled, "the roster with it")
        tap_ledger(fleet.state(box) / LEDGER_FILE)
        self._one_job(f"{box}, which nobody had prepared, answers with the others", of=box)
        fleet.stop_one(box)
        self._until(lambda: fleet.online() == len(self._remaining()) - 1, "its good-bye")
        fleet.expire(box)
        fleet.start(box)
        self._until(lambda: "certificate_renewed" in fleet.log(box), "its next certificate")
        self._until(self._all_online, "the device with its new certificate")
        self._one_job(f"{box} got its next certificate over the wire; a job of all", of=box)

    def broker_expired(self) -> None:
        fleet, broker = self.fleet, BROKERS[0]
        self._rest()
        fleet.stop_one(broker)
        fleet.expire(broker)
        seen = {box: len(fleet.log(box)) for box in self._remaining()}
        fleet.start(broker)
        self._until(
            lambda: all(re.search(_EXPIRED, fleet.log(box)[at:]) for box, at in seen.items()),
            "every device's line that the broker's certificate has expired",
        )
        self._step("no device takes the broker for its own, and each says why")
        plan = fleet.site / PLAN_FILE
        text = plan.read_text().replace("certificate_days: 397", "certificate_days: 400")
        plan.write_text(text.replace("renew_days: 60", "renew_days: 398"))
        fleet.operator("apply")
        fleet.install(broker)
        self._until(self._all_online, "all devices at the renewed broker")
        self._one_job("the broker took up its certificate by itself; a job of all")

    def last_job(self) -> None:
        self.notes.last_job = self._one_job("everybody answers")
        self._last_release()

    # --- what acts are made of ---

    def _remaining(self) -> list[str]:
        """Boxes that were not revoked."""
        return [box for box in self.fleet.boxes if box not in self.notes.revoked]

    def _all_online(self) -> bool:
        return self.fleet.online() == len(self._remaining())

    def _all_enrolled(self) -> bool:
        counts = re.findall(r"enrolled=(\d+)", self.fleet.log("cloud"))
        return bool(counts) and int(counts[-1]) == len(self._remaining())

    def _in_use(self) -> set[str]:
        return {release_in_use(self.fleet.state(box)) for box in self._remaining()}

    def _last_release(self) -> None:
        wanted = {wire_id(self.jobs.completed[-1]).hex()}
        self._until(lambda: self._in_use() == wanted, "the last release at every device")

    def _paid(self, box: str, job: str) -> bool:
        accounts = read_ledger(self.fleet.state(box) / LEDGER_FILE).accounts.values()
        return any(wire_id(job).hex() in account for account in accounts)

    def _rest(self) -> None:
        self.jobs.feeding = False
        self._until(lambda: self.jobs.idle, "the end of the jobs under way")

    def _one_job(self, said: str, of: str = "") -> str:
        """One job to its end; its name. `of`: a device that must have paid for it."""
        self._rest()
        begun_s = time.monotonic()
        job = self.jobs.submit()
        self._until(lambda: job in self.jobs.names and self.jobs.idle, f"the end of {job}")
        status, reason = self.jobs.status(job)
        if status != "completed":
            raise ActFailed(f"{job} is {status}: {reason}")
        if of and not self._paid(of, job):
            raise ActFailed(f"{of} did not answer {job}")
        self._step(f"{said}: {time.monotonic() - begun_s:.1f} s")
        return job

    def _until(self, holds: Callable[[], object], what: str) -> None:
        """Raises ActFailed."""
        end_s = time.monotonic() + _WAIT_S
        while not holds():
            if time.monotonic() > end_s:
                going = self.jobs.going
                job = " ".join((going, *self.jobs.status(going))) if going else "no job"
                gone = ", ".join(self.fleet.gone()) or "no process"
                online = self.fleet.online()
                raise ActFailed(f"{what}: not in time; {job}, {online} online, {gone} ended")
            time.sleep(_LOOK_S)
            self.jobs.look()

    def _step(self, said: str) -> None:
        self.acts[-1].steps.append((self.now_s(), said))
        self._say(f"{self.now_s():6.1f} s    {said}")

    def now_s(self) -> float:
        return time.monotonic() - self._begun_s

    @contextmanager
    def _act(self, name: str) -> Iterator[None]:
        act = DrillAct(name, self.now_s())
        self.acts.append(act)
        self._say(f"{act.at_s:6.1f} s  {name}")
        try:
            yield
        except EdgeVeilError as error:
            act.failed = str(error)
        finally:
            act.seconds = self.now_s() - act.at_s


ACTS: dict[str, Callable[[Drill], None]] = {
    "a fleet, one device revoked": Drill.begin,
    "a leaked key and a fast-forward": Drill.leaked_key,
    "a cloud's clock ahead, and its store lost": Drill.cloud_lost,
    "a device's certificate expired": Drill.device_expired,
    "the edge broker's certificate expired": Drill.broker_expired,
    "a last job": Drill.last_job,
}
