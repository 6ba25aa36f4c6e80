"""The commands of the README and of the guides, executed as they stand."""

import http.cookiejar
import json
import re
import shlex
import subprocess
import sys
import urllib.parse
import urllib.request

import pytest
import yaml

from edgeveil.jobs.load import parse_plan
from tests.kits.commands import ran
from tests.kits.guides import ROOT, await_free, blocks, started

OWN_DATA = "docs/walkthroughs/own-data.md"
FIT = "docs/walkthroughs/fit.md"
WATCH = "docs/walkthroughs/watch.md"
DEPLOY, DEPLOYED = "docs/walkthroughs/deploy.md", "docs/deploy.md"
NEXT = re.compile(r"^(?:Next: |  )(edgeveil .*)$", re.MULTILINE)


def told_by(line, folder):
    """What the command says, of which the last command is what to go on with."""
    done = ran(*shlex.split(line)[1:], cwd=folder, timeout=250)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_five_commands_lead_from_a_table_to_answers_each_told_by_the_one_before(tmp_path):
    lines = [block.strip() for block in blocks(OWN_DATA, "sh command")]
    assert [line.split()[1] for line in lines] == ["init", "check", "check", "run", "predict"]
    (made,), (judged,) = (blocks(OWN_DATA, k) for k in ("python pets", "sh judged"))
    subprocess.run([sys.executable, "-c", made], cwd=tmp_path, check=True)
    told = told_by(lines[0], tmp_path)
    job = tmp_path / "my-pets" / "job.yaml"
    (draft,) = blocks(OWN_DATA, "yaml")
    assert draft in job.read_text()
    subprocess.run(["sh", "-c", judged], cwd=tmp_path, check=True)
    price = blocks(OWN_DATA, "text")[0].split("\n\n")[1].split("Noise")[0]
    for line in lines[1:]:
        assert NEXT.findall(told)[-1] == line
        told = told_by(line, tmp_path)
        assert "--estimate" not in line or price in told
    assert "dog" in told and "cat" in told  # what predict printed: names


@pytest.mark.slow
def test_the_readme_s_own_model_learns(tmp_path):
    for name, kind in {"mynet.py": "python mynet.py", "job.yaml": "yaml job.yaml"}.items():
        (tmp_path / name).write_text(*blocks("README.md", kind), "utf-8")
    (command,) = blocks("README.md", "sh own-model")
    with started(command, tmp_path) as run:
        assert run.wait(240) == 0, (tmp_path / "log").read_text()
    result = json.loads((tmp_path / "out/fedavg/result.json").read_text())
    assert result["final"]["accuracy"] > 0.8
    assert result["privacy"]["training"]["status"] == "none"


@pytest.mark.slow
def test_a_training_script_becomes_a_job(tmp_path):
    for name, kind in {"script.py": "python script.py", "job.yaml": "yaml job.yaml"}.items():
        (tmp_path / name).write_text(*blocks(FIT, kind), "utf-8")
    assert len((tmp_path / "job.yaml").read_text().splitlines()) <= 10
    (command,) = blocks(FIT, "sh command")
    with started(command, tmp_path) as run:
        assert run.wait(240) == 0, (tmp_path / "log").read_text()
    result = json.loads((tmp_path / "out/fit/result.json").read_text())
    assert result["final"]["accuracy"] > 0.75
    (noise,) = blocks(FIT, "yaml noise")
    job = yaml.safe_load((tmp_path / "job.yaml").read_text()) | yaml.safe_load(noise)
    del job["local_run"]
    job |= {"privacy": {"epsilon": 8}, "model": {"name": "mlp"}}
    training = parse_plan(yaml.safe_dump(job)).quote().training
    assert (training.unit, training.status) == ("device", "proven")


@pytest.mark.drill
def test_a_fleet_started_by_hand_runs_jobs_and_shows_its_pages(tmp_path):
    await_free(21883, 21884, 8701, 8702, 8711)
    (refused,) = blocks(WATCH, "sh refused")
    (told,) = blocks(WATCH, "text")
    script = ""
    for block in blocks(WATCH, "sh watch"):
        script += block
        if block.endswith("> mine.yaml\n"):
            script += f"if {refused.strip()}; then echo 'not refused'; exit 1; fi\n"

    with started(script, tmp_path) as run:
        code = run.wait(240)
        log = (tmp_path / "log").read_text()
        assert code == 0, log
        assert told.strip() in log
        assert "Traceback" not in log
        listed = re.search(r"^digits-\w+ +completed", log, re.MULTILINE)
        assert listed, log
        assert f"{(tmp_path / 'id').read_text().strip()}: completed" in log
        assert 'edgeveil_jobs{status="completed"} 2.0' in (tmp_path / "cloud.metrics").read_text()
        assert "edgeveil_answers_total" in (tmp_path / "proxy.metrics").read_text()
        assert re.search(r"^\w+: admitted", log, re.MULTILINE), log  # one box more
        for made in ("model.onnx", "compared.html"):
            assert (tmp_path / made).stat().st_size > 0

        browser = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        )
        (address,) = re.findall(r"<(http://127\.0\.0\.1:8701/)>", (ROOT / WATCH).read_text("utf-8"))
        token = (tmp_path / "site/state/cloud/http-submit.token").read_text()
        entry = urllib.parse.urlencode({"token": token}).encode()
        with browser.open(f"{address}login", entry, timeout=20) as page:
            assert "<title>" in page.read().decode()
        with browser.open(f"{address}v1/page/me", timeout=20) as me:
            assert json.load(me)["may_submit"]
        (way_in,) = re.findall(r"^(http://127\.0\.0\.1:8711/)#ticket=", log, re.MULTILINE)
        for other in (way_in, "http://127.0.0.1:8702/"):
            with urllib.request.urlopen(other, timeout=20) as page:
                assert "<title>" in page.read().decode()


@pytest.mark.slow
def test_the_guide_makes_a_fleet_that_runs_a_job(tmp_path):
    await_free(8883, 8884, 18701, 18702)
    walk, guide = blocks(DEPLOY, "sh walk"), blocks(DEPLOYED, "sh fleet")
    assert guide[:4] == walk[:4]  # the guide's beginning is played by the walkthrough
    assert len(guide) == 6
    (targets,) = blocks(DEPLOYED, "sh targets")
    script = "".join([*walk[:4], targets, *walk[4:], *guide[4:]])
    # Others of these tests have the usual ports of the pages.
    dry_run = "edgeveil site apply clinics --dry-run\n"
    other = "sed -i 's/8701/18701/; s/8702/18702/' clinics/fleet.yaml\n" + dry_run
    script = script.replace(dry_run, other, 1)
    with started(script, tmp_path) as run:
        code = run.wait(240)
    told = (tmp_path / "log").read_text()
    assert code == 0, told
    assert re.search(r"digits-\w+: completed", told), told
    answered = re.search(r"^ +5 +class \d +probability", told, re.MULTILINE)
    assert answered, told
    for name in ("units/edgeveil-proxy@.service", "compose/compose.yaml"):
        assert (tmp_path / name).exists()
    assert "-  min_batch_floor: 3" in told
    assert re.search(r"revoked  \S+  box-0004", told), told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "least"),
    [("text", 0.95), ("sound", 0.9), ("windows", 0.9), ("persons", 0.75), ("statistics", 0.9)],
    ids=str,
)
def test_a_tutorial_learns_what_it_says(page, least, tmp_path):
    page = f"docs/walkthroughs/{page}.md"
    (made,), (commands,) = blocks(page, "python data"), blocks(page, "sh tutorial")
    subprocess.run([sys.executable, "-c", made], cwd=tmp_path, check=True)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    with started(commands, tmp_path) as run:
        assert run.wait(280) == 0, (tmp_path / "log").read_text()
    (result,) = tmp_path.glob("out/*/result.json")
    assert json.loads(result.read_text())["final"]["accuracy"] > least
    assert "probability" in (tmp_path / "answers").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("page", ["text", "sound"])
def test_a_network_learns_the_files_of_a_tutorial(page, tmp_path):
    """Without noise: a GRU on tokens of the messages, a `ds_cnn` on spectra of the sounds."""
    name, data = {
        "text": ("messages_tokens", "messages.csv"),
        "sound": ("spoken_digits", "sounds"),
    }[page]
    (made,) = blocks(f"docs/walkthroughs/{page}.md", "python data")
    subprocess.run([sys.executable, "-c", made], cwd=tmp_path, check=True)
    file = ROOT / f"configs/jobs/{name}.yaml"
    if page == "sound":
        job = yaml.safe_load(file.read_text("utf-8"))
        kept = {key: job[key] for key in ("job", "data", "local_run")}
        model = {"name": "ds_cnn", "input_scale": 255}
        train = {"method": "sgd", "rounds": 12, "local_epochs": 3, "batch_size": 16}
        train |= {"learning_rate": 0.005, "optimizer": {"name": "adam"}}
        job = {**kept, "model": model, "train": train, "privacy": {"accept_unproven": True}}
        file = tmp_path / file.name
        file.write_text(yaml.safe_dump(job))
    ran("run", str(file), "--data", data, "--simulate", cwd=tmp_path, timeout=280)
    (result,) = tmp_path.glob("out/*/result.json")
    assert json.loads(result.read_text())["final"]["accuracy"] > 0.95
    told = ran("predict", f"out/{name}/model.onnx", data, cwd=tmp_path).stdout
    assert "probability" in told
