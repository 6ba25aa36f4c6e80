"""`edgeveil health`: what is told of a process that does its work, and of one that does not."""

import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from edgeveil.sites.broker import BrokerSite
from edgeveil.sites.files import load_site
from edgeveil.transport.process import OwnFolder
from edgeveil_tools.cli import main
from edgeveil_tools.deploy.health import problem_of
from edgeveil_tools.site.brokers import free_ports
from edgeveil_tools.site.provision import Ports, SitePlan, provision


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    plan = SitePlan(
        tmp_path_factory.mktemp("health") / "site", devices=1, ports=Ports(*free_ports(6))
    )
    return provision(plan)


class Pages:
    """Answers every request in the same way, on a port of its own."""

    def __init__(self, status, body):
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body if self.path == "/healthz" else b"")

            def log_message(self, *_):
                """Quiet."""

        self._server = HTTPServer(("127.0.0.1", 0), Answer)
        self.port = self._server.server_port
        Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


def at_port(site, port):
    return site.model_copy(update={"http": site.http.model_copy(update={"port": port})})


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_broker_is_well_while_it_listens(host):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        broker = BrokerSite(host=host, port=port, users_file=Path("users"))
        assert problem_of(broker) is None
    assert problem_of(broker) == f"nobody listens on port {port}: Connection refused"


def test_a_device_is_well_while_a_process_holds_its_folder(site, capsys):
    config = site.edges[0]
    held = load_site(config).state_dir
    assert problem_of(load_site(config)) == "the device does not run"
    with OwnFolder(held):
        assert problem_of(load_site(config)) is None
        assert main(["health", "--config", str(config)]) == 0
    assert problem_of(load_site(config)) == "the device does not run"
    assert capsys.readouterr().out == "ok\n"
    assert main(["health", "--config", str(config)]) == 1
    assert capsys.readouterr().err == "the device does not run\n"


@pytest.mark.parametrize("role", ["cloud", "proxy"])
@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (200, b"{}", None),
        (503, b'{"ok": false, "parts": ["broker", "disk"]}', "not well: broker, disk"),
        (503, b"down", "answers 503"),
        (404, b'{"parts": []}', "answers 404"),
        (503, b'{"parts": 5}', "answers 503"),
    ],
)
def test_cloud_and_proxy_are_as_well_as_their_page_says(site, role, status, body, problem):
    with Pages(status, body) as pages:
        assert problem_of(at_port(load_site(getattr(site, role)), pages.port)) == problem


def test_a_page_that_nobody_serves_is_named(site):
    (port,) = free_ports(1)
    found = problem_of(at_port(load_site(site.cloud), port))
    assert found.startswith(f"does not answer at http://127.0.0.1:{port}: ")


def test_a_page_for_known_clients_alone_need_only_listen(site, tmp_path):
    written = yaml.safe_load(site.cloud.read_text())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        files = {name: str(tmp_path / name) for name in ("cert_file", "key_file", "client_ca_file")}
        written["cloud"]["http"] |= {"port": port, "tls": files}
        config = site.cloud.with_name("tls.yaml")
        config.write_text(yaml.safe_dump(written))
        cloud = load_site(config)
        assert problem_of(cloud) is None
    assert "nobody listens" in problem_of(cloud)
