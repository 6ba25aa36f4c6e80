"""A provisioned site with real brokers and real processes."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import yaml

from edgeveil.config.broker import BrokerSite
from edgeveil.config.policy import Policy
from edgeveil.errors import BrokerError, UsageError
from edgeveil_tools.cli.common import load_as
from edgeveil_tools.cloud_client import Cloud
from edgeveil_tools.site.brokers import BrokerProcess, free_ports, spec_of
from edgeveil_tools.site.provision import CellPorts, Ports, SiteSpec, provision
from tests.kits.commands import edgeveil
from tests.kits.profiled_broker import ProfiledBroker

WAIT_S = 60.0
BLOCK_TORCH = """import sys
for name in ("torch", "onnx", "sqlalchemy", "aiohttp"):
    sys.modules[name] = None
"""


def wait_for(condition, what, limit_s=WAIT_S, every_s=0.05):
    """Poll until true; the failure names the condition."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within {limit_s:g} s")
        time.sleep(every_s)


def page(url, token=""):
    asked = Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urlopen(asked, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()
    except (URLError, ConnectionError):
        return 0, ""


def answers(connect):
    try:
        connect().list()
    except UsageError:
        return False
    return True


_JOB = Path(__file__).with_name("site_job.yaml")


def site_job(devices, *, rounds, every=0, min_batch=None, nominal_records=100):
    """Return a job over so many digit devices, with local noise and no masks.

    Five devices suffice for a round; it evaluates `every` so many rounds (0: never)."""
    text = _JOB.read_text("utf-8").format(
        devices=devices, min_batch=min_batch or min(5, devices), nominal_records=nominal_records
    )
    text = text.replace("rounds: 15", f"rounds: {rounds}")
    return text.replace("every_rounds: 5", f"every_rounds: {every}")


def start_again(broker):
    """Start a stopped broker, waiting for old connections to free the port."""
    end_s = time.monotonic() + 30
    while True:
        try:
            return broker.start()
        except BrokerError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.2)


class LiveSite:
    """Two brokers, a cloud, a proxy and devices, each in its own process."""

    def __init__(
        self, folder, devices=5, engine="mosquitto", *, policy=None, enforced=None, cells=0, **plan
    ):
        """Plan the site; unless `enforced` by the brokers, the links enforce their own `profile`.

        Each of `cells`, named `cell-1` and on, has an edge broker and a proxy; 0: one unnamed cell.
        `plan` has further fields of `SiteSpec`."""
        self.spec = SiteSpec(
            folder / "site",
            devices=devices,
            ports=Ports(*free_ports(6)),
            cells={f"cell-{number}": CellPorts(*free_ports(3)) for number in range(1, cells + 1)},
            engine=engine,
            # Little more room than digits need, so that trials are fast on slow machines too.
            policy=(policy or Policy(max_inference_epsilon=500)).with_room(500 // devices),
            **plan,
        )
        self.site = self.provisioned()
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.brokers = {
            domain: self._broker(domain, folder / domain, enforced or self.spec.profile)
            for domain in self.spec.domains
        }
        self.processes = {}

    def _broker(self, domain, folder, limits):
        site = load_as(BrokerSite, self.site.brokers[domain])
        if limits == "default":
            return BrokerProcess(spec_of(site), folder, users_file=site.users_file)
        return ProfiledBroker(spec_of(site), folder, limits, users_file=site.users_file)

    def provisioned(self):
        return provision(self.spec)

    def __enter__(self):
        for broker in self.brokers.values():
            broker.start()
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
        for broker in self.brokers.values():
            broker.stop()

    def start(self, name, *configs, blocked=None, files=None, begins_with=BLOCK_TORCH):
        """Run `edgeveil cloud|proxy|edge --config …`; its output goes to a log of that name.

        `files` are the soft and hard limit of open files; `blocked` is a folder for
        `begins_with`."""
        command = edgeveil(name.split("-")[0], "--config", *configs)
        env = dict(os.environ)
        if blocked:
            (blocked / "sitecustomize.py").write_text(begins_with)
            env["PYTHONPATH"] = os.pathsep.join([str(blocked), *sys.path])
        with (self.logs / name).open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        if files is not None:  # at once: it takes far longer until the process looks
            resource.prlimit(self.processes[name].pid, resource.RLIMIT_NOFILE, files)
        return self.processes[name]

    def start_all(self):
        self.start_servers()
        self.start("edge", *self.site.edges)
        self.wait_ready()

    def start_servers(self):
        self.start("cloud", self.site.cloud)
        for cell in self.spec.cell_names:
            self.start_proxy(cell)

    def start_proxy(self, cell=""):
        self.start(f"proxy-{cell}" if cell else "proxy", self.site.proxies[cell])

    def wait_ready(self):
        wait_for(self.answers, "the cloud's start")
        wait_for(lambda: self.online() == self.spec.devices, "all hellos")

    def online(self, *cells):
        """Return the number of devices online in these cells (default: all)."""
        of_it = cells or self.spec.cell_names
        return sum(self.proxy_status(cell).get("online", 0) for cell in of_it)

    def answers(self):
        return answers(lambda: self.client)

    def proxy_status(self, cell=""):
        """Return the status page of a cell's proxy; empty while it does not answer."""
        code, text = page(f"{self.proxy_url(cell)}/status")
        return json.loads(text) if code == 200 else {}

    def proxy_url(self, cell=""):
        return f"http://127.0.0.1:{self.spec.ports_of(cell).proxy_http}"

    @property
    def client(self):
        return Cloud(self.spec.url, self.site.token_file)

    def submit(self, rounds=3, every=2, **numbers):
        """Queue a job that evaluates `every` so many rounds (0: never), with other `numbers`."""
        own = yaml.safe_load((self.spec.folder / "job.yaml").read_text())
        text = site_job(
            self.spec.devices,
            rounds=rounds,
            every=every,
            min_batch=min(5, self.spec.devices - self.spec.infer_only),
            nominal_records=own["data"]["nominal_records"],
        )
        for key, number in numbers.items():
            text = re.sub(rf"\b{key}: \d+", f"{key}: {number}", text)
        return self.client.submit_yaml(text.encode())

    def committed(self, job):
        return len(self.client.job(job)["exchanges"])

    def finish(self, job):
        wait_for(lambda: self.client.job(job)["ended_at"], "the job's end")
        return self.client.job(job)

    def completed(self, job):
        found = self.finish(job)
        assert (found["status"], found["reason"]) == ("completed", "")
        return found

    def wait_released(self):
        """Wait until each device has the model of the only job in use."""

        def count():
            edges = [self.log(path.name) for path in self.logs.glob("edge*")]
            return sum(text.count("final model is in use") for text in edges)

        wait_for(lambda: count() >= self.spec.devices, "the release everywhere", 2 * WAIT_S)

    def log(self, name):
        return (self.logs / name).read_text(errors="replace")

    def stop(self, name, number=signal.SIGINT):
        process = self.processes.pop(name)
        process.send_signal(number)
        return process.wait(15)

    def start_each(self):
        self.start_servers()
        for number, edge in enumerate(self.site.edges, 1):
            self.start(f"edge-{number}", edge)
        self.wait_ready()

    def stop_all(self):
        for name in list(self.processes):
            self.stop(name)
