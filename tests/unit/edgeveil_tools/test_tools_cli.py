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
        for name, child in action.choices.items() if isinstance(action.choices, dict) else ():
            yield from _commands(child, (*path, name))


ALL = dict(_commands(cli.parser()))


def test_every_command_explains_itself(capsys):
    for path in ALL:
        assert cli.main([*path, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: {' '.join(('edgeveil', *path))} ")
    assert cli.main([]) == 2


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


@pytest.mark.parametrize(
    ("library", "line", "said"),
    [
        ("rich", "run configs/jobs/quickstart.yaml", "'edgeveil[tools]'"),
        ("prometheus_client", "proxy --config SITE/proxy.yaml", "'edgeveil[proxy]'"),
        ("prometheus_client", "proxy --config SITE/none.yaml", "SITE/none.yaml"),
    ],
)
def test_a_missing_extra_is_named_once_files_are_sound(site, library, line, said):
    code = f"import sys; sys.modules[{library!r}] = None; import edgeveil_tools.cli as c; "
    code += f"sys.exit(c.main({line.replace('SITE', str(site)).split()!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert said.replace("SITE", str(site)) in done.stderr


def test_commands_of_other_distributions_are_added_where_they_are(monkeypatch, capsys):
    class Point:
        def load(self):
            return lambda commands: commands.add_parser("dance").set_defaults(handler=len_of)

    def len_of(args):
        return 7

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())
    for name in ("loadtest", "capacity", "audit", "attack", "reproduce"):
        assert cli.main([name, "--devices", "5"]) == 2
        assert "pip install edgeveil-lab" in capsys.readouterr().err
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Point()])
    assert cli.main(["dance"]) == 7
    monkeypatch.setattr("importlib.metadata.entry_points", None)  # own commands do not ask
    assert cli.main(["--version"]) == 0


# A command line, and where the first line of its refusal says that the fault is.
REFUSED = {
    "cloud --config SITE/proxy.yaml": "SITE/proxy.yaml",
    "proxy": "--config",
    "edge": "--config",
    "edge --config SITE/edge-1.yaml --config SITE/edge-1.yaml": "SITE/",
    "site init NEW --local --devices 0": "--devices",
    "run JOB --simulate --sweep privacy.epsilon": "--sweep",
    "run JOB --simulate --sweep privacy.epsilon=8,-1": "--sweep privacy.epsilon=-1",
    "run JOB --simulate --sweep privacy.epsilom=8": "--sweep privacy.epsilom=8",
    "run JOB --simulate --seeds 0": "--seeds",
    "run JOB --simulate --seeds 2 --track neptune:x": "--track neptune:x",
    "run JOB --simulate --track board": "--track board",
    "run JOB --simulate --track tensorboard:": "--track tensorboard:",
    "run JOB --simulate --keep": "--keep",
    "run JOB --simulate --broker amqtt": "--broker",
    "run JOB --simulate --data /": "--data",
    "run JOB --simulate --devices 3": "JOB with --devices 3 --simulate: round.min_batch",
    "run JOB --ray 127.0.0.1:6379": "--ray",
    "run configs/jobs/digits_buffered.yaml --simulate": "round.mode",
    "report SITE": "SITE/result.json",
    "ledger SITE/none": "SITE/none",
    "log SITE/none.yaml": "SITE/none.yaml",
    "deploy compose SITE --out NEW": "SITE",
    "deploy compose --out NEW": "",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_done_is_refused_by_its_place_before_anything_starts(
    site, tmp_path, capsys, line
):
    places = {"SITE": str(site), "NEW": str(tmp_path / "new"), "JOB": "tests/kits/quickstart.yaml"}
    where = REFUSED[line]
    for name, path in places.items():
        line, where = line.replace(name, path), where.replace(name, path)
    words = line.split()
    words += ["--out", places["NEW"]] if words[0] == "run" else []
    assert cli.main(words) == 2
    assert where in capsys.readouterr().err.splitlines()[0]
    assert not (tmp_path / "new").exists() and not (site / "none").exists()


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
    assert cli.main(["log", str(tmp_path / "none.yaml"), "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert (said["command"], said["ok"], len(said["problems"])) == ("log", False, 1)


@pytest.mark.parametrize(("error", "code"), [(ZeroDivisionError, 1), (KeyboardInterrupt, 130)])
def test_an_unexpected_error_is_a_line_and_ctrl_c_is_none(monkeypatch, capsys, error, code):
    def fails(_args):
        raise error

    monkeypatch.setattr("edgeveil_tools.setup.doctor.command", fails)
    assert cli.main(["check"]) == code
    assert len(capsys.readouterr().err.splitlines()) == (code == 1)


def test_what_is_gone_is_named_with_its_successor_which_there_is(capsys):
    own = {path[0] for path in ALL if path} | {"--version", "--completion"}
    for old, new in SUCCESSORS.items():
        assert cli.main([*old.split(), "x"]) == 2
        assert new in capsys.readouterr().err
        assert not new.startswith("edgeveil ") or new.split()[1] in own


def test_the_nearest_word_is_named(capsys):
    nearest = {
        "chek x": "'check'",
        "job submti x": "'submit'",
        "run x --devcies 3": "'--devices'",
        "--completion fsh": "'fish'",
    }
    for line, word in nearest.items():
        assert cli.main(line.split()) == 2
        assert word in capsys.readouterr().err.partition("did you mean")[2]


@pytest.mark.parametrize(("flag", "level"), [("-v", "DEBUG"), ("--quiet", "ERROR")])
def test_the_level_of_logs_is_that_of_the_command_line(flag, level, monkeypatch, capsys):
    monkeypatch.setattr(logs, "_asked", "")
    log = logging.getLogger(logs.OURS)
    before = log.level
    assert cli.main(["check", "--schema", "job", flag]) == 0
    logs.setup("info", "text")  # as a process does by its site file
    assert logging.getLevelName(log.level) == level
    log.setLevel(before)


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


@pytest.mark.parametrize("word", ["b", "b@d", "b/d", "b@/d"])
def test_a_password_in_an_address_is_in_no_command_line_of_a_result(word, monkeypatch):
    args = []
    monkeypatch.setattr("edgeveil_tools.cli.learning.run", lambda given: args.append(given) or 0)
    track = f"x:http://a:{word}@c"
    assert cli.main(["run", "tests/kits/quickstart.yaml", "--simulate", "--track", track]) == 0
    assert args[0].command_line.endswith("--track x:http://…@c")
