"""A fleet from its plan: bundles are put in their places, a job runs, devices come and go."""

import datetime
import os
import signal
import socket
import subprocess

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from edgeveil.crypto.authorities import Authority, certificate_pem
from edgeveil_tools.cli import main
from edgeveil_tools.cloud_client import Cloud
from edgeveil_tools.site.brokers import free_ports
from edgeveil_tools.site.fleet_spec import FLEET_FILE
from tests.kits.commands import edgeveil
from tests.kits.live_site import answers, site_job, wait_for
from tests.kits.site_folders import shown

DEVICES = 4
BOXES = [f"box-{number:04}" for number in range(1, DEVICES + 1)]
ROTATION_ROUNDS = 16  # each lasts its time budget of 2 s, so that the job outlasts the rotation
SERVERS = ("broker-edge", "broker-cloud", "cloud", "proxy")


class PlannedFleet:
    def __init__(self, folder, authentication, *, claims=False):
        http, proxy_http = free_ports(2)
        plan = self.planned(folder)
        fleet = plan["fleet"] | {"authentication": authentication}
        fleet["cloud"]["http"]["port"] = self.http = http
        fleet["proxy"]["http"]["port"] = proxy_http
        fleet["devices"]["csv"] = "devices.csv"
        fleet["devices"]["data"]["shard"]["devices"] = 2 * DEVICES
        if claims:
            fleet["devices"] |= {"claims": {"admit": "at_once"}}
            fleet["devices"]["data"]["shard"] = {"devices": 4, "index": 0}
        (self.site / "devices.csv").write_text("name\n")
        self.write(plan)
        self.command("apply")

    def write(self, plan):
        (self.site / FLEET_FILE).write_text(yaml.safe_dump(plan))

    def planned(self, folder, *options):
        self.site, self.places, self.logs = (folder / one for one in ("site", "places", "logs"))
        for path in (self.places, self.logs):
            path.mkdir()
        self.processes = {}
        self._told = {}
        assert main(["site", "init", str(self.site), "--devices", str(DEVICES), *options]) == 0
        plan = yaml.safe_load((self.site / FLEET_FILE).read_text())
        for at, port in zip(("edge_broker", "cloud_broker"), free_ports(2), strict=True):
            plan["fleet"][at] |= {"listen": f"127.0.0.1:{port}", "public": f"localhost:{port}"}
        return plan

    def command(self, name, *rest):
        assert main(["site", name, str(self.site), *rest, "--no-passphrase"]) == 0

    def install(self, *names):
        for name in names:
            bundle = self.site / "bundles" / name
            assert main(["site", "install", str(bundle), str(self.places / name)]) == 0

    def start(self, *names):
        for name in names:
            role = "edge" if name.startswith("box") else name.partition("-")[0]
            command = edgeveil(role, "--config", self.places / name / "edgeveil.yaml")
            manager = f"edgeveil-test-{os.getpid()}-{name}"
            told = self._told[name] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            told.bind(f"\0{manager}")
            environ = {**os.environ, "NOTIFY_SOCKET": f"@{manager}"}
            with (self.logs / name).open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    command, stdout=log, stderr=log, cwd=os.sep, env=environ
                )

    def wait_ready(self, *names):
        """As systemd does for units of `Type=notify`: each has said so itself."""
        for name in names:
            told = self._told.pop(name)
            told.settimeout(60)
            while told.recv(4096) != b"READY=1":
                pass
            told.close()

    def log(self, name):
        return (self.logs / name).read_text(errors="replace")

    def wait_logged(self, name, words):
        wait_for(lambda: words in self.log(name), f"{words} of {name}")

    def start_all(self, *boxes):
        self.start(*SERVERS[:2])
        self.wait_ready(*SERVERS[:2])
        self.start(*SERVERS[2:], *boxes)
        self.wait_ready(*SERVERS[2:], *boxes)

    @property
    def cloud(self):
        return Cloud(f"http://127.0.0.1:{self.http}", self.places / "cloud/state/http.token")

    def submit(self, devices, rounds=2):
        wait_for(lambda: answers(lambda: self.cloud), "the cloud's start")
        return self.cloud.submit_yaml(site_job(devices, rounds=rounds, min_batch=3).encode())

    def learns(self, devices, job=None):
        job = job or self.submit(devices)
        wait_for(lambda: self.cloud.job(job)["ended_at"], "the job's end", 180)
        found = self.cloud.job(job)
        assert (found["status"], found["reason"]) == ("completed", "")
        assert {round["uploads"] for round in found["exchanges"]} == {devices}

    def restart(self, name):
        self.processes[name].send_signal(signal.SIGTERM)
        self.processes[name].wait(30)
        self.start(name)

    def well(self, name):
        config = self.places / name / "edgeveil.yaml"
        return main(["health", "--config", str(config)]) == 0

    def end(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGKILL)
            process.wait()
        for told in self._told.values():
            told.close()


@pytest.fixture(params=["certificates", pytest.param("passwords", marks=pytest.mark.drill)])
def fleet(request, tmp_path):
    claims = request.param == "claims"
    found = PlannedFleet(tmp_path, "certificates" if claims else request.param, claims=claims)
    yield found
    found.end()


def test_bundles_make_a_fleet_whose_devices_come_and_go(fleet):
    fleet.install(*SERVERS, *BOXES)
    fleet.start_all(*BOXES)
    fleet.learns(DEVICES)
    assert all(fleet.well(name) for name in (*SERVERS, *BOXES))

    policy = fleet.places / BOXES[0] / "policy.yaml"
    owners = policy.read_text().replace("lifetime_epsilon: 50.0", "lifetime_epsilon: 11.0")
    policy.write_text(owners)
    ledger = (fleet.places / BOXES[0] / "state" / "ledger.sqlite").read_bytes()
    lost = fleet.log(BOXES[1]).count("broker_lost")
    with (fleet.site / "devices.csv").open("a") as table:
        table.write("ward-7\n")
    fleet.command("revoke", BOXES[1])
    fleet.install("broker-edge", "proxy", BOXES[0], "ward-7")
    assert policy.read_text() == owners
    assert (fleet.places / BOXES[0] / "state" / "ledger.sqlite").read_bytes() == ledger
    wait_for(lambda: fleet.log(BOXES[1]).count("broker_lost") > lost, "the revoked one's end")
    fleet.places.joinpath("box-ward").symlink_to(fleet.places / "ward-7")
    (fleet.logs / "box-ward").touch()
    fleet.start("box-ward")
    fleet.wait_logged("box-ward", "final model is in use")  # of before it came
    fleet.learns(DEVICES)  # as many as before: one went, one came
    assert "exchange" not in fleet.log(BOXES[1]).partition("broker_lost")[2]


@pytest.mark.drill
@pytest.mark.parametrize("fleet", ["certificates"], indirect=True)
def test_an_authority_is_rotated_while_a_job_runs(fleet):
    fleet.install(*SERVERS, *BOXES)
    fleet.start_all(*BOXES)
    job = fleet.submit(DEVICES, rounds=ROTATION_ROUNDS)
    ca = fleet.places / BOXES[0] / "tls" / "edge-ca.crt"
    first = ca.read_bytes()

    def committed():
        found = fleet.cloud.job(job)
        assert found["ended_at"] is None, "the job outlasts the rotation"
        return len(found["exchanges"])

    def resumes_by_itself():
        before = committed()
        wait_for(lambda: committed() > before + 1, "further rounds")

    def broker_takes_up():
        begun = fleet.log("broker-edge").count("started anew")
        fleet.install("broker-edge")
        wait_for(lambda: fleet.log("broker-edge").count("started anew") > begun, "the broker")

    resumes_by_itself()
    fleet.command("rotate", "edge-authority")
    broker_takes_up()
    fleet.install("proxy", *BOXES)
    resumes_by_itself()
    fleet.command("rotate", "edge-authority", "--finish")
    broker_takes_up()  # from now on it takes no certificate of the authority before
    resumes_by_itself()
    fleet.install("proxy", *BOXES)
    assert first not in ca.read_bytes()
    fleet.learns(DEVICES, job)


def _renewed(fleet, box, *, left_days):
    """A box whose certificate ends soon, or has ended, gets its next one by itself."""
    path = fleet.places / box / "state" / "edge.crt"
    before = shown(path)
    tls = fleet.places / "proxy" / "tls"
    authority = Authority.load(tls / "claims-ca.crt", *tls.glob("claims-ca-*.key"))
    now = datetime.datetime.now(datetime.UTC)
    copied = x509.CertificateBuilder(before.issuer, before.subject, before.public_key())
    copied = copied.serial_number(before.serial_number)
    copied = copied.not_valid_before(now - datetime.timedelta(days=396))
    copied = copied.not_valid_after(now + datetime.timedelta(days=left_days))
    for one in before.extensions:
        copied = copied.add_extension(one.value, one.critical)
    path.write_bytes(certificate_pem(copied.sign(authority.key, hashes.SHA256())))
    fleet.restart(box)
    fleet.wait_logged(box, "certificate_renewed")
    after = shown(path)
    assert after.not_valid_after_utc - now > datetime.timedelta(days=300)
    assert after.serial_number != before.serial_number


@pytest.mark.slow
@pytest.mark.parametrize("fleet", ["claims"], indirect=True)
def test_one_image_serves_boxes_that_nobody_has_prepared(fleet):
    fleet.install(*SERVERS, *BOXES)
    image = fleet.site / "bundles" / "image"
    config = str(fleet.places / "proxy" / "edgeveil.yaml")
    lines = fleet.places / "claims.csv"
    add = ["proxy", "admit", "--claim", "--config", config, "--out", str(lines)]
    assert main([*add, "ward-1", "ward-2"]) == 0
    claims = dict(line.split(",") for line in lines.read_text().splitlines())
    for box, claim in (*claims.items(), ("thief", claims["ward-1"])):
        place = fleet.places / f"box-{box}"
        assert main(["site", "install", str(image), str(place)]) == 0
        (place / "state" / "claim").write_text(claim)
    fleet.start_all(*BOXES, "box-ward-1", "box-ward-2")
    fleet.learns(DEVICES + 2)
    state = fleet.places / "box-ward-1" / "state"
    assert not (state / "claim").exists()
    assert (state / "edge.crt").exists()
    _renewed(fleet, "box-ward-1", left_days=1)
    _renewed(fleet, "box-ward-2", left_days=-1)
    fleet.learns(DEVICES + 2)
    fleet.start("box-thief")
    wait_for(lambda: fleet.processes["box-thief"].poll() is not None, "the thief's end")
    assert fleet.processes["box-thief"].returncode == 2
    assert "the claim was used by another device" in fleet.log("box-thief")
    assert not (fleet.places / "box-thief" / "state" / "edge.crt").exists()
