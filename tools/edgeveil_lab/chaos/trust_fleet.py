"""The planned fleet that the trust drill plays on: a site's folder, its places, its processes.

What an operator does is done by the commands that an operator gives.
"""

from __future__ import annotations

import datetime
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from edgeveil.crypto.authorities import Authority, certificate_pem
from edgeveil.errors import EdgeVeilError, JobFailed
from edgeveil.privacy.ledger import LEDGER_FILE
from edgeveil_lab.chaos.evidence import tap_ledger
from edgeveil_tools.cloud_client import Cloud, get_json
from edgeveil_tools.lifeline import Lifeline
from edgeveil_tools.local.children import signal_group, spawn, tail
from edgeveil_tools.site.brokers import free_ports
from edgeveil_tools.site.fleet_plan import PLAN_FILE

BROKERS = ("broker-edge", "broker-cloud")
SERVERS = (*BROKERS, "cloud", "proxy")
COMMAND_S = 120.0
STOP_S = 15.0
_PAST_DAYS = 397


class TrustFleet:
    """Bundles in their places, each party a process of its own. Logs go to `logs/<name>.log`."""

    def __init__(self, folder: Path, logs: Path, devices: int) -> None:
        """Plans and applies the site, and installs every bundle. Raises JobFailed."""
        self.site, self.places, self.logs = folder / "fleet", folder / "places", logs
        self.places.mkdir()
        self.boxes = tuple(f"box-{number:04}" for number in range(1, devices + 1))
        self.late: list[str] = []
        self._lifeline = Lifeline()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        edge, cloud, self._http, self._proxy_http = free_ports(4)
        self.command("site", "init", str(self.site), "--devices", str(devices))
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
                {"name": box, "data": data | {"shard": {"devices": devices + 1, "index": at}}}
                for at, box in enumerate(self.boxes)
            ],
            "data": data | {"shard": {"devices": devices + 1, "index": devices}},  # the image's
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

    # --- an operator's commands ---

    def command(self, *words: str) -> str:
        """`edgeveil WORDS`; what it printed. Raises JobFailed where it is refused."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "edgeveil_tools.cli", *words],
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
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
        """`edgeveil site NAME`."""
        self.command("site", name, str(self.site), *rest, "--no-passphrase")

    def trust(self, name: str, *rest: str) -> None:
        """`edgeveil trust NAME`, and the bundles that hand it on; cloud and proxy get theirs."""
        self.command("trust", name, str(self.site / "trust"), *rest, "--no-passphrase")
        self.operator("apply")
        self.install("cloud", "proxy")

    def install(self, *names: str) -> None:
        """Hand bundles over."""
        for name in names:
            bundle = self.site / "bundles" / name
            self.command("site", "install", str(bundle), str(self.places / name))

    def claim(self, name: str) -> None:
        """A box that nobody has prepared: the image, and a claim of its own."""
        lines = self.places / f"{name}.claim"
        config = str(self.config("proxy"))
        self.command("proxy", "claims", "add", name, "--config", config, "--out", str(lines))
        image = str(self.site / "bundles" / "image")
        self.command("site", "install", image, str(self.places / name))
        (self.state(name) / "claim").write_text(lines.read_text("utf-8").partition(",")[2], "utf-8")
        self.boxes = (*self.boxes, name)

    # --- places ---

    def config(self, name: str) -> Path:
        """A party's site file."""
        return self.places / name / "edgeveil.yaml"

    def state(self, name: str) -> Path:
        """A party's state folder."""
        return self.places / name / "state"

    def copy(self, name: str, to: Path) -> Path:
        """All of a stopped party's place, or of its state, as it is now."""
        shutil.copytree(self.places / name, to)
        return to

    def tap(self, boxes: Iterable[str]) -> None:
        """Once they are up, before the first job: their ledgers forget no release."""
        for box in boxes:
            tap_ledger(self.state(box) / LEDGER_FILE)

    def expire(self, party: str) -> None:
        """Its certificate is from now on one that ended yesterday, of the same authority."""
        claimed = self.state(party) / "edge.crt"
        path = claimed if claimed.exists() else _certificate_of(self.places / party / "tls")
        before = x509.load_pem_x509_certificate(path.read_bytes())
        yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        made = x509.CertificateBuilder(before.issuer, before.subject, before.public_key())
        made = made.serial_number(before.serial_number).not_valid_after(yesterday)
        made = made.not_valid_before(yesterday - datetime.timedelta(days=_PAST_DAYS))
        for one in before.extensions:
            made = made.add_extension(one.value, one.critical)
        key = self._authority(before.issuer).key
        path.write_bytes(certificate_pem(made.sign(key, hashes.SHA256())))

    def _authority(self, name: x509.Name) -> Authority:
        for path in sorted((self.site / "authorities").glob("*.crt")):
            found = Authority.load(path, path.with_suffix(".key"))
            if found.certificate.subject == name:
                return found
        raise JobFailed(f"no authority of the site is called {name.rfc4514_string()}")

    # --- processes ---

    def start(self, *names: str) -> None:
        """`edgeveil ROLE --config …` for each."""
        for name in names:
            role = "edge" if name.startswith("box") else name.partition("-")[0]
            with (self.logs / f"{name}.log").open("ab") as log:
                words = [role, "--config", str(self.config(name))]
                threads = 1 if role == "edge" else None
                self._processes[name] = spawn(words, log, self._lifeline, threads=threads)

    def stop_one(self, name: str) -> int:
        """SIGTERM, and its end; the exit code. A process that does not end is killed, and told."""
        process = self._processes.pop(name)
        signal_group(process, signal.SIGTERM)
        return self._ended(name, process)

    def gone(self) -> list[str]:
        """Processes that have ended by themselves."""
        return [name for name, one in self._processes.items() if one.poll() is not None]

    def stop(self) -> None:
        """End everything, the brokers last; may be called twice."""
        left = sorted(self._processes, key=lambda name: name in BROKERS)
        for group in ([n for n in left if n not in BROKERS], [n for n in left if n in BROKERS]):
            for name in group:
                signal_group(self._processes[name], signal.SIGTERM)
            for name in group:
                self._ended(name, self._processes.pop(name))
        if not self._lifeline.closed:
            self._lifeline.close()

    def _ended(self, name: str, process: subprocess.Popen[bytes]) -> int:
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.late.append(name)
            signal_group(process, signal.SIGKILL)
            process.wait()
        return int(process.returncode)

    # --- what is seen from outside ---

    def log(self, name: str) -> str:
        """What a process wrote so far."""
        path = self.logs / f"{name}.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def tail(self, name: str) -> str:
        """The end of it."""
        return tail(self.logs / f"{name}.log")

    def online(self) -> int:
        """Devices that the proxy sees; none while it does not answer."""
        with suppress(OSError):
            found = get_json(f"http://127.0.0.1:{self._proxy_http}", "/status")
            return int(found.get("online", 0))
        return 0

    def cloud(self) -> Cloud:
        """The cloud's HTTP control. Raises UsageError before its first start."""
        return Cloud(f"http://127.0.0.1:{self._http}", self.state("cloud") / "http.token")

    def answers(self) -> bool:
        """Whether the cloud takes requests."""
        with suppress(EdgeVeilError):
            return self.cloud().list() is not None
        return False


def _certificate_of(folder: Path) -> Path:
    """The one that its holder shows, not an authority's."""
    for path in sorted(folder.glob("*.crt")):
        with suppress(ValueError, x509.ExtensionNotFound):
            found = x509.load_pem_x509_certificate(path.read_bytes())
            if not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
                return path
    raise JobFailed(f"{folder} holds no certificate")
