import json
import logging
import os
import subprocess
import sys

import pytest

from edgeveil import logs
from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment
from edgeveil_tools import cli
from edgeveil_tools.cli.successors import SUCCESSORS
from edgeveil_tools.lifeline import Lifeline


@pytest.fixture
def site(tmp_path, capsys):
    assert cli.main(["site", "init", str(tmp_path / "site"), "--local"]) == 0
    capsys.readouterr()
    return tmp_path / "site"


def _commands(parser, path=()):
    yield path, parser
    for action in parser._actions:
        for name, child in (
            (getattr(action, "choices", None) or {}).items() if _is_sub(action) else ()
        ):
            yield from _commands(child, (*path, name))


def _is_sub(action):
    return isinstance(getattr(action, "choices", None), dict)


ALL = dict(_commands(cli.parser()))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_explains_itself(path, capsys):
    assert cli.main([*path, "--help"]) == 0
    assert "usage: edgeveil" in capsys.readouterr().out


def test_no_command_prints_the_help_and_is_no_success(capsys):
    assert cli.main([]) == 2
    assert "COMMAND" in capsys.readouterr().out


def test_the_command_line_needs_no_library_of_any_extra():
    code = (
        "import sys\n"
        "from edgeveil_tools.cli import main\n"
        "assert main(['--help']) == 0\n"
        "heavy = {'torch', 'rich', 'matplotlib', 'pydantic', 'numpy', 'aiohttp', 'sqlalchemy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


_FILES = ("proxy.yaml", "none.yaml")


def _without(library, *argv):
    """Run a command where `library` cannot be imported."""
    code = f"import sys; sys.modules[{library!r}] = None; import edgeveil_tools.cli as c; "
    code += f"sys.exit(c.main({list(argv)!r}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("library", "words", "said"),
    [
        ("rich", ("run", "configs/jobs/quickstart.yaml"), "pip install 'edgeveil[tools]'"),
        ("prometheus_client", ("proxy", "--config", "proxy.yaml"), "pip install 'edgeveil[proxy]'"),
        ("prometheus_client", ("proxy", "--config", "none.yaml"), "no such file"),
    ],
)
def test_a_missing_extra_is_named_once_files_are_sound(site, library, words, said):
    done = _without(library, *(str(site / one) if one in _FILES else one for one in words))
    assert done.returncode == 2
    assert said in done.stderr


def test_commands_of_the_laboratory_say_what_to_install_where_it_is_not(monkeypatch, capsys):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())
    for name in ("loadtest", "capacity", "audit", "attack", "reproduce"):
        assert cli.main([name, "--devices", "5"]) == 2
        said = f"edgeveil: edgeveil {name}: needs the laboratory, which is not installed. "
        assert capsys.readouterr().err == said + "pip install edgeveil-lab\n"


def test_other_distributions_add_commands_that_own_ones_do_not_load(monkeypatch, capsys):
    class Point:
        def load(self):
            return lambda commands: commands.add_parser("dance").set_defaults(handler=len_of)

    def len_of(args):
        return 7

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Point()])
    assert cli.main(["dance"]) == 7
    monkeypatch.setattr("importlib.metadata.entry_points", None)
    assert cli.main(["--version"]) == 0


def test_faults_of_a_file_are_lines_that_begin_with_the_place(tmp_path, capsys):
    bad = tmp_path / "bad.yaml"
    bad.write_text("cloud:\n  brokr: {}\n")
    assert cli.main(["cloud", "--config", str(bad)]) == 2
    error = capsys.readouterr().err
    assert all(line.startswith(f"{bad}:") for line in error.splitlines())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cloud", "--config", "proxy.yaml"), "is a proxy site file"),
        (("proxy",), "--config FILE"),
        (("edge",), "--config FILE"),
        (("edge", "--config", "edge-1.yaml", "--config", "edge-1.yaml"), "share this state folder"),
        (("site", "init", "new.yaml", "--local", "--devices", "0"), "use 1 or more"),
    ],
)
def test_what_cannot_be_started_is_refused(site, capsys, words, said):
    given = [str(site / one) if one.endswith(".yaml") else one for one in words]
    assert cli.main(given) == 2
    assert said in capsys.readouterr().err


def test_enrol_admit_list_revoke(site, tmp_path, capsys):
    proxy = ["--config", str(site / "proxy.yaml")]
    text = (site / "edge-1.yaml").read_text().replace("state/edge-1", "state/new")
    (site / "new.yaml").write_text(text)
    file = str(tmp_path / "enrolment.json")
    assert cli.main(["keys", "--config", str(site / "new.yaml"), "--out", file]) == 0
    assert cli.main(["proxy", "admit", *proxy, "--note", "ward 3", file]) == 0
    device = capsys.readouterr().out.partition(":")[0]
    assert cli.main(["proxy", "devices", *proxy, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["devices"]
    assert (listed[-1]["device"], listed[-1]["note"]) == (device, "ward 3")
    assert len(listed) == 4
    assert cli.main(["proxy", "revoke", *proxy, device]) == 0
    capsys.readouterr()
    assert cli.main(["proxy", "devices", *proxy]) == 0
    assert device not in capsys.readouterr().out


def test_one_bad_enrolment_admits_none(site, tmp_path, capsys):
    good = Enrolment.make(SigningKey.generate(), OpeningKey.generate())
    other = Enrolment.make(SigningKey.generate(), OpeningKey.generate())
    forged = Enrolment(good.identity, other.sealing, good.signature)
    for name, one in (("a", other), ("b", forged)):
        (tmp_path / name).write_text(one.to_json())
    config = ["--config", str(site / "proxy.yaml")]
    assert cli.main(["proxy", "admit", *config, str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert cli.main(["proxy", "devices", *config, "--json"]) == 0
    assert other.device_id not in capsys.readouterr().out


def test_check_for_scripts(site, tmp_path, capsys):
    (tmp_path / "bad.yaml").write_text("job: X\n")
    files = [str(site / "cloud.yaml"), str(tmp_path / "bad.yaml")]
    assert cli.main(["--json", "check", *files]) == 2
    said = json.loads(capsys.readouterr().out)
    good, bad = said["files"]
    assert (said["command"], said["ok"]) == ("check", False)
    assert (good["ok"], good["kind"], good["problems"]) == (True, "cloud", [])
    assert not bad["ok"]
    assert bad["problems"]


def test_an_error_is_an_object_too_with_json(tmp_path, capsys):
    assert cli.main(["log", str(tmp_path / "none.yaml"), "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert (said["command"], said["ok"]) == ("log", False)
    assert "no such file" in said["problems"][0]


@pytest.mark.parametrize(("old", "new"), SUCCESSORS.items())
def test_what_is_gone_is_named_with_its_successor(old, new, capsys):
    assert cli.main([*old.split(), "x"]) == 2
    assert capsys.readouterr().err == f"edgeveil {old} is now: {new}\n"
    words = new.split()
    assert words[0] != "edgeveil" or words[1] in {path[0] for path in ALL if path} | {
        "--version",
        "--completion",
    }


@pytest.mark.parametrize(
    ("line", "nearest"),
    [
        ("chek x", "'check'"),
        ("job submti x", "'submit'"),
        ("run x --devcies 3", "'--devices'"),
        ("--completion fsh", "'fish'"),
    ],
)
def test_the_nearest_word_is_named(line, nearest, capsys):
    assert cli.main(line.split()) == 2
    assert f"did you mean {nearest}" in capsys.readouterr().err


@pytest.mark.parametrize(("flag", "level"), [("-v", "DEBUG"), ("--quiet", "ERROR")])
def test_the_level_of_logs_is_that_of_the_command_line(flag, level, monkeypatch, capsys):
    monkeypatch.setattr(logs, "_asked", "")
    log = logging.getLogger(logs.OURS)
    before = log.level
    assert cli.main(["check", "--schema", "job", flag]) == 0
    logs.setup("info", "text")  # as a process does by its site file
    assert logging.getLevelName(log.level) == level
    log.setLevel(before)


def test_an_unexpected_error_is_text(monkeypatch, capsys):
    monkeypatch.setattr("edgeveil_tools.setup.doctor.command", lambda _args: 1 // 0)
    assert cli.main(["check"]) == 1
    assert "unexpected ZeroDivisionError" in capsys.readouterr().err


def test_ctrl_c_is_130_without_a_word(monkeypatch, capsys):
    def interrupted(_args):
        raise KeyboardInterrupt

    monkeypatch.setattr("edgeveil_tools.setup.doctor.command", interrupted)
    assert cli.main(["check"]) == 130
    assert capsys.readouterr().err == ""


def test_a_reader_that_goes_away_is_no_fault():
    line = f"{sys.executable} -m edgeveil_tools.cli check --schema job | head -c 10"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0


def test_a_child_ends_with_its_starter():
    lifeline = Lifeline()
    code = (
        "from edgeveil_tools import lifeline; import time; lifeline.watch();"
        "print('up', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **lifeline.environment},
        pass_fds=[lifeline.child_fd],
        stdout=subprocess.PIPE,
    )
    assert child.stdout.readline() == b"up\n"
    assert child.poll() is None
    lifeline.close()
    assert child.wait(timeout=20) != 0
