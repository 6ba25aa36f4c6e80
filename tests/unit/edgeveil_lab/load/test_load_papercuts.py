"""What is found before anything starts, and said in one line."""

from __future__ import annotations

import http.server
import socket
import threading

import pytest

from edgeveil_tools import cli


@pytest.fixture
def stranger():
    """A web server that knows nothing of load tests."""
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def said(capsys, *arguments: str) -> str:
    """What `edgeveil loadtest` writes before it ends with exit code 2."""
    try:
        code = cli.main(["loadtest", *arguments])
    except SystemExit as end:
        code = end.code
    assert code == 2
    return capsys.readouterr().err


def test_an_authority_that_cannot_be_read(capsys, tmp_path):
    found = said(capsys, "--tls", "--ca", str(tmp_path / "none.crt"))
    assert "--ca: " in found
    assert "cannot be read (No such file or directory)" in found


def test_a_port_for_generators_that_is_taken(capsys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        token = str(tmp_path / "token")
        found = said(capsys, "--devices", "3", "--listen", address, "--join-token", token)
    assert f"--listen {address}: cannot be listened at (Address already in use)" in found


def test_a_server_that_is_no_leader(capsys, tmp_path, stranger):
    (tmp_path / "token").write_text("word")
    found = said(capsys, "--join", stranger, "--join-token", str(tmp_path / "token"))
    assert "something else than a load test answers there" in found
    assert "<" not in found


def test_counts_that_are_no_numbers(capsys):
    found = said(capsys, "--devices", "100,x").strip()
    assert "100,x" in found
    assert "Traceback" not in found


def test_more_devices_than_a_test_may_have(capsys):
    assert "1000000" in said(capsys, "--devices", "2000000")
