"""Listening sockets: who may open them, how many connections they may hold, TLS files."""

import grp
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from edgeveil.errors import EdgeVeilError, UsageError
from edgeveil.transport.listener import (
    connect_unix,
    most_connections,
    peer_of,
    server_context,
    unix_socket,
)
from tests.kits.certificates import Authority

LIMITS = """
import resource
from edgeveil.transport.listener import most_connections, raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
try:
    print(raise_file_limit(), most_connections())
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("soft", "hard", "said"),
    [
        (64, 1024, "1024 256"),
        (300, 400, "400 100"),
        (64, 128, "the process may open 128 files, it needs 256"),
    ],
)
def test_the_file_limit_is_raised_and_the_bound_follows(soft, hard, said):
    script = LIMITS.format(soft=soft, hard=hard)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert said in done.stdout, done.stderr
    assert "64" not in done.stdout.split()
    assert most_connections() * 4 <= resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@pytest.mark.parametrize("folder", ["made", "long" * 40])  # longer than an address holds
@pytest.mark.parametrize("for_group", [False, True])
def test_a_unix_socket_is_for_its_user_or_a_group(tmp_path, folder, for_group):
    path = tmp_path / folder / "a.sock"
    group = grp.getgrgid(os.getgid()).gr_name if for_group else None
    unix_socket(path).close()  # as of a process that was killed: it makes room
    with unix_socket(path, group) as listening, connect_unix(path, 10.0) as caller:
        assert stat.S_IMODE(path.stat().st_mode) == (0o660 if for_group else 0o600)
        listening.setblocking(True)
        accepted, _ = listening.accept()
        with accepted:
            caller.sendall(b"here")
            assert accepted.recv(4) == b"here"
        with pytest.raises(UsageError, match="another process listens on it"):
            unix_socket(path, group)
    with pytest.raises(ConnectionRefusedError):
        connect_unix(path, 1.0)


@pytest.mark.parametrize("broken", ["absent", "open", "mixed", "encrypted", "authority"])
def test_tls_files_that_cannot_be_used_are_named(tmp_path, broken):
    authority = Authority(tmp_path)
    cert, key = authority.issue("localhost")
    ca = authority.cert_file
    match broken:
        case "absent":
            cert.unlink()
        case "open":
            key.chmod(0o644)
        case "mixed":
            _, key = authority.issue("other")
        case "encrypted":
            authority.encrypt(key, b"word")
        case "authority":
            ca = tmp_path / "empty.crt"
            ca.write_text("")
    with pytest.raises(EdgeVeilError) as caught:
        server_context(cert, key, ca)
    assert Path(caught.value.where) in (cert, key, ca) and caught.value.fix


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:0:1:aaaa::1", "2001:db8:0:1::"),
        ("2001:db8:0:1::2", "2001:db8:0:1::"),
        ("2001:db8:0:2::2", "2001:db8:0:2::"),
        ("fe80::1%lo", "fe80::"),
        ("", ""),
    ],
)
def test_a_peer_is_an_ipv4_address_or_an_ipv6_64(host, peer):
    assert peer_of(host) == peer


@pytest.mark.parametrize(
    ("name", "group", "what"),
    [
        ("kept.txt", None, "another file has this name"),
        ("x" * 120, None, "too long"),
        ("a.sock", "no-such-group", "no group 'no-such-group'"),
    ],
)
def test_a_unix_socket_that_cannot_be_had_is_told(tmp_path, name, group, what):
    (tmp_path / "kept.txt").write_text("kept")
    with pytest.raises(UsageError, match=what) as caught:
        unix_socket(tmp_path / name, group)
    assert caught.value.where == str(tmp_path / name) and caught.value.fix
    assert (tmp_path / "kept.txt").read_text() == "kept"
