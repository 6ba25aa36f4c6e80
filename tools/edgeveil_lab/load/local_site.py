"""A site of its own for one load test: two brokers, a cloud and a proxy that know the fleet."""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from edgeveil.crypto.keys import VerifyKey
from edgeveil.errors import JobFailed
from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES
from edgeveil.protocol.sealed import padded
from edgeveil.sites.files import load_site
from edgeveil.transport.process import own_signing_key
from edgeveil_lab.load.fleet import Fleet, admit
from edgeveil_lab.load.options import LoadOptions
from edgeveil_proxy.registry import REGISTRY_FILE
from edgeveil_tools.local.children import Children
from edgeveil_tools.site.broker_plan import BrokerPlan, ListenerTls, write_private
from edgeveil_tools.site.broker_rules import users_text
from edgeveil_tools.site.brokers import BrokerProcess, choose_engine, free_ports
from edgeveil_tools.site.certificates import make_certificates
from edgeveil_tools.site.provision import SIDES
from edgeveil_tools.site.site_plan import Ports, SitePlan

MIN_BATCH = 3
_DEVICES = 100_000
_CONNECTIONS = 20_000
_SPARE_CONNECTIONS = 100


@dataclass(frozen=True)
class Target:
    """Where the devices, and who follows the job, find a site."""

    broker: str
    cloud: str
    token_file: Path
    cloud_key: VerifyKey
    proxy_key: VerifyKey
    proxy_http: str | None = None
    ca: Path | None = None


class LocalSite:
    """Written and started by `start`; `stop` ends all of it. Logs go to `logs`."""

    def __init__(self, options: LoadOptions, fleet: Fleet, folder: Path, logs: Path) -> None:
        self._options, self._fleet, self.folder, self._logs = options, fleet, folder, logs
        self.children = Children(logs)
        self._brokers: dict[str, BrokerProcess] = {}
        self._outside = {"edge": options.broker, "cloud": options.cloud_broker}
        self.accounts: dict[str, str] = {}
        engine = choose_engine()
        self._plan = SitePlan(
            folder=folder,
            devices=len(fleet.members),
            ports=Ports(*free_ports(4)),
            tls=options.tls,
            engine=engine,
            protocol=options.protocol if engine == "mosquitto" else 4,
            upload_bytes=padded(options.payload_bytes) + SEAL_OVERHEAD_BYTES,
            min_batch_floor=min(MIN_BATCH, len(fleet.members)),
        )

    @property
    def broker_name(self) -> str:
        """Engine and version, or the address of a broker that runs elsewhere."""
        edge = self._brokers.get("edge")
        return edge.name if edge else str(self._options.broker)

    def start(self) -> Target:
        """Write everything, start everything. Raises BrokerError, UsageError, OSError."""
        plan, folder = self._plan, self.folder
        for name in ("keys", "passwords", "state"):
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        keys = {}
        for role in ("cloud", "proxy"):
            keys[role] = own_signing_key(folder / "state" / role, role).public()
            keys[role].save(folder / "keys" / f"{role}.pub")
        self._admit()
        if plan.tls:
            hosts = ["localhost", plan.host]
            make_certificates(folder / "tls", hosts, [f"broker-{side}" for side in SIDES])
        for side in SIDES:
            if self._outside[side] is None:
                self._start_broker(side)
        for role, settings in (("cloud", self._cloud()), ("proxy", self._proxy())):
            path = folder / f"{role}.yaml"
            path.write_text(yaml.safe_dump(settings), "utf-8")
            load_site(path)
            self.children.start(role, [role, "--config", str(path)])
        return Target(
            broker=self._outside["edge"] or self._brokers["edge"].url,
            cloud=plan.url,
            token_file=folder / "state" / "cloud" / "http.token",
            cloud_key=keys["cloud"],
            proxy_key=keys["proxy"],
            proxy_http=f"http://{plan.host}:{plan.ports.proxy_http}",
            ca=folder / "tls" / "ca.crt" if plan.tls and not self._outside["edge"] else None,
        )

    def pids(self) -> dict[str, int]:
        """Process ids by name: cloud, proxy and the two brokers."""
        return self.children.pids() | self.broker_pids()

    def broker_pids(self) -> dict[str, int]:
        """Process ids of the two brokers by name."""
        return {f"broker-{side}": b.pid for side, b in self._brokers.items() if b.pid}

    def check(self) -> None:
        """Raise JobFailed if a process has ended by itself."""
        self.children.check()
        for side, broker in self._brokers.items():
            if not broker.running():
                raise JobFailed(f"the broker of the {side} side ended by itself")

    def stop(self) -> None:
        """End all; the brokers last."""
        self.children.stop()
        for side, broker in self._brokers.items():
            broker.stop()
            with suppress(OSError):
                raw = (self.folder / f"broker-{side}" / "broker.log").read_bytes()
                (self._logs / f"broker-{side}.log").write_bytes(raw)

    def _admit(self) -> None:
        enrolments = list(self._fleet.enrolments())
        limit = max(_DEVICES, len(enrolments))
        admit(self.folder / "state" / "proxy" / REGISTRY_FILE, enrolments, limit)
        self.accounts = self._fleet.users(enrolments)
        edge = {**self.accounts, "proxy": self._password("proxy-edge")}
        cloud = {"proxy": self._password("proxy-cloud"), "cloud": self._password("cloud")}
        for side, users in (("edge", edge), ("cloud", cloud)):
            write_private(self.folder / "passwords" / f"{side}-broker.users", users_text(users))

    def _password(self, name: str) -> str:
        word = secrets.token_urlsafe(24)
        write_private(self.folder / "passwords" / name, word + "\n")
        return word

    def _start_broker(self, side: str) -> None:
        plan, tls = self._plan, None
        if plan.tls:
            certificate = self.folder / "tls" / f"broker-{side}.crt"
            tls = ListenerTls(certificate, certificate.with_suffix(".key"))
        broker = BrokerProcess(
            BrokerPlan(
                engine=plan.engine,  # type: ignore[arg-type]
                port=getattr(plan.ports, side),
                acl=side,  # type: ignore[arg-type]
                tls=tls,
                packet_bytes=self._options.packet_bytes,
                max_queued_bytes=plan.queued_bytes,
                max_connections=max(_CONNECTIONS, plan.devices + _SPARE_CONNECTIONS),
            ),
            self.folder / f"broker-{side}",
            users_file=self.folder / "passwords" / f"{side}-broker.users",
        )
        self._brokers[side] = broker
        broker.start()

    def _link(self, settings: dict[str, Any], key: str, side: str) -> None:
        """Let it use the broker of this side that runs elsewhere, if there is one."""
        options, url = self._options, self._outside[side]
        if url is not None:
            files = {"password_file": options.password_file, "ca_file": options.ca}
            files |= {"cert_file": options.cert, "key_file": options.key}
            settings[key] = {
                "url": url,
                "protocol": options.protocol,
                "username": options.user,
                **{name: str(path.absolute()) for name, path in files.items() if path},
            }

    def _cloud(self) -> dict[str, Any]:
        settings = self._plan.cloud()
        settings["cloud"]["test_data"] = None
        self._link(settings["cloud"], "broker", "cloud")
        settings["cloud"]["limits"]["packet_bytes"] = self._options.packet_bytes
        return settings

    def _proxy(self) -> dict[str, Any]:
        settings = self._plan.proxy()
        for side in SIDES:
            self._link(settings["proxy"], f"{side}_broker", side)
        limits = settings["proxy"]["limits"]
        limits["packet_bytes"] = self._options.packet_bytes
        limits["devices"] = max(_DEVICES, self._plan.devices)
        return settings
