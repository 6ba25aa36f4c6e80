"""The commands of README and docs/walkthroughs/watch.md, executed."""

import http.cookiejar
import json
import re
import urllib.parse
import urllib.request

import pytest

from tests.kits.guides import ROOT, await_free, blocks, started

PAGE = "docs/walkthroughs/watch.md"


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


@pytest.mark.drill
def test_a_fleet_started_by_hand_runs_jobs_and_shows_its_pages(tmp_path):
    await_free(21883, 21884, 8701, 8702, 8711)
    (refused,) = blocks(PAGE, "sh refused")
    (told,) = blocks(PAGE, "text")
    script = ""
    for block in blocks(PAGE, "sh watch"):
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
        (address,) = re.findall(r"<(http://127\.0\.0\.1:8701/)>", (ROOT / PAGE).read_text("utf-8"))
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
