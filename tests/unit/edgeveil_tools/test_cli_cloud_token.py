"""`edgeveil keys --token`: names the file of a scope, and replaces what it holds when asked to."""

import pytest
import yaml

from edgeveil.tokens import read_token
from edgeveil.transport.process import make_signing_key
from edgeveil_tools import cli


@pytest.fixture
def config(tmp_path):
    site = {
        "broker": {"url": "mqtt://127.0.0.1:1"},
        "state_dir": str(tmp_path / "state"),
        "proxy_key_file": "proxy.pub",
    }
    make_signing_key(tmp_path / "state", "cloud")
    path = tmp_path / "cloud.yaml"
    path.write_text(yaml.safe_dump({"cloud": site}))
    return path


@pytest.mark.parametrize(
    ("scope", "name"),
    [("read", "http-read.token"), ("submit", "http-submit.token"), ("admin", "http.token")],
)
def test_a_scopes_token_is_named_kept_and_rotated(config, tmp_path, capsys, scope, name):
    asked = ["keys", "--config", str(config), "--token", scope]
    path = tmp_path / "state" / name
    assert cli.main(asked) == 0
    first = read_token(path)
    assert cli.main(asked) == 0
    assert read_token(path) == first
    assert cli.main([*asked, "--next"]) == 0
    second = read_token(path)
    assert second != first
    assert path.stat().st_mode & 0o777 == 0o600
    said = capsys.readouterr()
    assert said.out.split() == [str(path)] * 3
    assert first not in said.out + said.err
    assert second not in said.out + said.err
    tokens = [one.name for one in path.parent.iterdir() if "token" in one.name]
    assert tokens == [name]
    assert cli.main(["log", str(config)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split()[2:] == ["rotate_token", "scope", scope]
