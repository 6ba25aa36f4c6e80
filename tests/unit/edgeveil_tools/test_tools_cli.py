import json
import logging
import os
import re
import subprocess
import sys

import pytest

from edgeveil import logs
from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment
from edgeveil_tools import cli
from edgeveil_tools.lifeline import Lifeline


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "site"
    assert cli.main(["site", "init", str(folder), "--local"]) == 0
    return folder


def _commands(parser, path=()):
    yield path, parser
    for action in parser._actions:
        for name, child in action.choices.items() if isinstance(action.choices, dict) else ():
            yield from _commands(child, (*path, name))


ALL = dict(_commands(cli.parser()))


def test_every_command_explains_itself_and_the_whole_names_each(capsys):
    for path in ALL:
        assert cli.main([*path, "--help"]) == 0
        text = capsys.readouterr().out
        assert text.startswith(f"usage: {' '.join(('edgeveil', *path))} ")
        if not path:
            named = re.findall(r"^  ([a-z]+)  +\S", text.partition("with every")[0], re.MULTILINE)
            assert set(named) == {one[0] for one in ALL if one}
            assert max(map(len, text.splitlines())) <= 80
    assert cli.main([]) == 2


@pytest.mark.parametrize(
    ("file", "where"), [("proxy.yaml", "'edgeveil[proxy]'"), ("none.yaml", "none.yaml")]
)
def test_a_missing_extra_is_named_once_files_are_sound(site, file, where):
    line = ["proxy", "--config", str(site / file)]
    code = "import sys; sys.modules['prometheus_client'] = None; import edgeveil_tools.cli as c; "
    command = [sys.executable, "-c", f"{code}sys.exit(c.main({line!r}))"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert where in done.stderr


def test_commands_of_other_distributions_are_added_where_they_are(monkeypatch, capsys):
    class Point:
        def load(self):
            return lambda commands: commands.add_parser("dance").set_defaults(handler=lambda _: 7)

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())
    assert cli.main(["loadtest", "--devices", "5"]) == 2
    assert "pip install edgeveil-lab" in capsys.readouterr().err
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Point()])
    assert cli.main(["dance"]) == 7


# A command line, and where the first line of its refusal says that the fault is.
REFUSED = {
    "cloud --config SITE/proxy.yaml": "SITE/proxy.yaml",
    "proxy": "--config",
    "edge --config SITE/edge-1.yaml --config SITE/edge-1.yaml": "SITE/",
    "site init NEW --local --devices 0": "--devices",
    "run JOB --simulate --sweep privacy.epsilon": "--sweep",
    "run JOB --simulate --sweep privacy.epsilon=8,-1": "--sweep privacy.epsilon=-1",
    "run JOB --simulate --seeds 0": "--seeds",
    "run JOB --simulate --seeds 2 --track neptune:x": "--track neptune:x",
    "run JOB --simulate --track tensorboard:": "--track tensorboard:",
    "run JOB --simulate --keep": "--keep",
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
    *others, listed = json.loads(capsys.readouterr().out)["devices"]
    assert (listed["device"], listed["note"], len(others)) == (device, "ward 3", 3)
    assert cli.main(["proxy", "revoke", *proxy, device]) == 0
    capsys.readouterr()
    assert cli.main(["proxy", "devices", *proxy]) == 0
    assert device not in capsys.readouterr().out


def test_one_bad_enrolment_admits_none(site, tmp_path, capsys):
    good, other = (Enrolment.make(SigningKey.generate(), OpeningKey.generate()) for _ in range(2))
    forged = Enrolment(good.identity, other.sealing, good.signature)
    files = [tmp_path / "a", tmp_path / "b"]
    for file, one in zip(files, (other, forged), strict=True):
        file.write_text(one.to_json())
    config = ["--config", str(site / "proxy.yaml")]
    assert cli.main(["proxy", "admit", *config, *map(str, files)]) == 2
    assert cli.main(["proxy", "devices", *config, "--json"]) == 0
    assert other.device_id not in capsys.readouterr().out


def test_check_for_scripts(site, tmp_path, capsys):
    (tmp_path / "bad.yaml").write_text("job: X\n")
    files = [str(site / "cloud.yaml"), str(tmp_path / "bad.yaml")]
    assert cli.main(["--json", "check", *files]) == 2
    answer = json.loads(capsys.readouterr().out)
    good, bad = answer["files"]
    assert (answer["command"], answer["ok"]) == ("check", False)
    assert (good["ok"], good["kind"], good["problems"]) == (True, "cloud", [])
    assert not bad["ok"] and bad["problems"]
    assert cli.main(["log", str(tmp_path / "none.yaml"), "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert (answer["command"], answer["ok"], len(answer["problems"])) == ("log", False, 1)


@pytest.mark.parametrize(("error", "code"), [(ZeroDivisionError, 1), (KeyboardInterrupt, 130)])
def test_an_unexpected_error_is_a_line_and_ctrl_c_is_none(monkeypatch, capsys, error, code):
    def fails(_args):
        raise error

    monkeypatch.setattr("edgeveil_tools.setup.doctor.command", fails)
    assert cli.main(["check"]) == code
    assert len(capsys.readouterr().err.splitlines()) == (code == 1)


def test_for_a_mistyped_command_the_nearest_is_named(capsys):
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
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_child_ends_with_its_starter():
    lifeline = Lifeline()
    code = "from edgeveil_tools import lifeline; import time; lifeline.watch();"
    code += "print('up', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **lifeline.environment},
        pass_fds=[lifeline.child_fd],
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout.readline() == b"up\n"
        assert child.poll() is None
        lifeline.close()
        assert child.wait(timeout=20) != 0


def test_a_password_in_an_address_is_in_no_command_line_of_a_result(monkeypatch):
    args = []
    monkeypatch.setattr("edgeveil_tools.cli.learning.run", lambda given: args.append(given) or 0)
    track = "x:http://a:b@/d@c"
    assert cli.main(["run", "tests/kits/quickstart.yaml", "--simulate", "--track", track]) == 0
    assert args[0].command_line.endswith("--track x:http://…@c")
