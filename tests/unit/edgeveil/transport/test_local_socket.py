"""Unix sockets: for their owner alone, in any folder, and never in another's place."""

import socket
import stat

import pytest

from edgeveil.errors import UsageError
from edgeveil.transport.local_socket import connect_locally, listen_locally


def heard(path):
    with listen_locally(path) as listening, connect_locally(path, 10.0) as caller:
        accepted, _ = listening.accept()
        with accepted:
            caller.sendall(b"here")
            return accepted.recv(4), stat.S_IMODE(path.stat().st_mode)


def test_it_is_heard_and_is_the_owner_s_alone(tmp_path):
    assert heard(tmp_path / "made" / "a.sock") == (b"here", 0o600)


def test_a_path_longer_than_an_address_holds(tmp_path):
    path = tmp_path / ("long" * 40) / "a.sock"
    assert heard(path) == (b"here", 0o600)


def test_one_that_was_left_behind_makes_room(tmp_path):
    path = tmp_path / "a.sock"
    listen_locally(path).close()
    assert path.exists()
    assert heard(path) == (b"here", 0o600)


def test_one_that_is_in_use_does_not(tmp_path):
    path = tmp_path / "a.sock"
    with listen_locally(path), pytest.raises(UsageError, match="another process listens here"):
        listen_locally(path)


def test_what_is_no_socket_is_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(UsageError, match="no socket"):
        listen_locally(path)
    assert path.read_text() == "mine"


def test_nobody_there_is_an_error(tmp_path):
    with pytest.raises(OSError):
        connect_locally(tmp_path / "none", 1.0)
    with socket.socket(socket.AF_UNIX) as unheard:
        unheard.bind(str(tmp_path / "unheard"))
        with pytest.raises(ConnectionRefusedError):
            connect_locally(tmp_path / "unheard", 1.0)
