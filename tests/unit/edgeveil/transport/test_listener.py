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
    ("soft", "hard", "said"), [(64, 1024, "1024 256"), (300, 400, "400 100"), (64, 128, "128")]
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


def test_tls_files_that_cannot_be_used_are_named(tmp_path):
    authority = Authority(tmp_path)
    empty = tmp_path / "empty.crt"
    empty.write_text("")
    (a, _), (b, open_key), (c, _), (d, sealed), (e, sound) = (
        authority.issue(f"host-{number}") for number in range(5)
    )
    a.unlink()
    open_key.chmod(0o644)
    authority.encrypt(sealed, b"word")
    ca = authority.cert_file
    for files in (
        *((a, sound, ca), (b, open_key, ca), (c, sound, ca), (d, sealed, ca), (e, sound, empty)),
    ):
        with pytest.raises(EdgeVeilError) as caught:
            server_context(*files)
        assert Path(caught.value.where) in files and caught.value.fix


def test_a_peer_is_an_ipv4_address_or_an_ipv6_64():
    for host, peer in (
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:0:1:aaaa::1", "2001:db8:0:1::"),
        ("2001:db8:0:1::2", "2001:db8:0:1::"),
        ("2001:db8:0:2::2", "2001:db8:0:2::"),
        ("fe80::1%lo", "fe80::"),
        ("", ""),
    ):
        assert peer_of(host) == peer


def test_a_unix_socket_that_cannot_be_had_is_told(tmp_path):
    (tmp_path / "kept.txt").write_text("kept")
    names = ("kept.txt", None), ("x" * 120, None), ("a.sock", "no-such-group")
    for name, group in names:
        with pytest.raises(UsageError) as caught:
            unix_socket(tmp_path / name, group)
        assert caught.value.where == str(tmp_path / name) and caught.value.fix
    assert (tmp_path / "kept.txt").read_text() == "kept"
