"""Listening sockets: who may open them, how many connections they may hold, TLS files."""

import grp
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from edgeveil.errors import EdgeVeilError, UsageError
from edgeveil.transport.listener import (
    connect_unix,
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


@pytest.mark.parametrize(("hard", "printed"), [(1024, "1024 256"), (128, "128")])
def test_the_file_limit_is_raised_and_the_bound_follows(hard, printed):
    script = LIMITS.format(soft=64, hard=hard)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert printed in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("folder", "for_group"),
    [("made", False), ("long" * 40, True)],  # longer than an address holds
)
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
    (a, key), (b, open_key), (c, sealed) = (authority.issue(f"host-{n}") for n in range(3))
    open_key.chmod(0o644)
    authority.encrypt(sealed, b"word")
    ca, gone = authority.cert_file, tmp_path / "gone.crt"
    for files, bad in (
        ((gone, key, ca), gone),
        ((b, open_key, ca), open_key),
        ((b, key, ca), None),  # another's key
        ((c, sealed, ca), None),
        ((a, key, empty), empty),
    ):
        with pytest.raises(EdgeVeilError) as caught:
            server_context(*files)
        assert caught.value.where == str(bad) or (not bad and Path(caught.value.where) in files)


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:0:1:aaaa::1", "2001:db8:0:1::"),
        ("2001:db8:0:2::2", "2001:db8:0:2::"),
        ("fe80::1%lo", "fe80::"),
        ("", ""),
    ],
)
def test_a_peer_is_an_ipv4_address_or_an_ipv6_64(host, peer):
    assert peer_of(host) == peer


def test_a_unix_socket_that_cannot_be_had_is_named(tmp_path):
    (tmp_path / "kept.txt").write_text("kept")
    for name, group in (("kept.txt", None), ("x" * 120, None), ("a.sock", "no-such-group")):
        with pytest.raises(UsageError) as caught:
            unix_socket(tmp_path / name, group)
        assert caught.value.where == str(tmp_path / name)
    assert (tmp_path / "kept.txt").read_text() == "kept"
