"""The cloud's page in a real browser: a job to its model, names that are markup, a
cookie that may only look."""

import pytest

from edgeveil_cloud.http_guard import TOKEN_FILES, Scope
from tests.kits.browser import DESK, PHONE, browser
from tests.kits.live_site import LiveSite, wait_for
from tests.kits.paged_cloud import HOSTILE, TOKENS, PagedCloud

CANCEL = (
    "return [...document.querySelectorAll('main button')].find((b) => b.textContent === 'Cancel …')"
)


@pytest.fixture(scope="module")
def window():
    with browser() as found:
        yield found


def log_in(window, url, token, size=DESK, *, dark=False):
    window.driver.delete_all_cookies()
    window.open(url, size, dark=dark)
    window.driver.find_element("id", "token").send_keys(token)
    window.driver.find_element("css selector", "form button").click()
    window.wait("document.querySelector('main h1')?.textContent === 'Jobs'")


def go(window, view):
    window.run("location.hash = arguments[0]", f"#/{view}")
    window.wait(f"location.hash === '#/{view}' && document.querySelector('main h1')")


def test_a_job_to_its_model_in_a_browser(tmp_path, window):
    with LiveSite(tmp_path, devices=5) as site:
        site.start_all()
        token = site.site.token_file.with_name(TOKEN_FILES[Scope.SUBMIT]).read_text().strip()
        log_in(window, site.spec.url, token)
        assert "No job yet" in window.text

        job = site.submit()
        window.wait("document.querySelector('main .job a')")
        go(window, f"job/{job}")
        window.wait("document.querySelector('.view .badge')?.textContent === 'completed'", 60)
        assert window.barriers() == []
        window.driver.execute_cdp_cmd(
            "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
        )
        window.driver.find_element("css selector", "a[href$='model.onnx']").click()
        fetched = tmp_path / f"{job}.onnx"
        wait_for(fetched.exists, "the download")
        assert fetched.read_bytes() == site.client.model(job)

        go(window, "fleet")
        window.wait("document.querySelector('main').innerText.includes('Links to brokers')")
        assert "connected" in window.text
        assert window.wrong() == []
        assert site.stop("cloud") == 0  # an open page does not hold it up


def test_names_that_are_markup_stay_names_and_nobody_is_kept_out(window):
    with PagedCloud() as cloud:
        cloud.job("digits", "completed")
        job = cloud.job(HOSTILE, "paused", reason=f"{HOSTILE}: below the minimum")
        views = ["jobs", "fleet", f"job/{cloud.quoted(job)}"]
        for size, dark in ((DESK, False), (PHONE, True)):
            log_in(window, cloud.url, TOKENS[Scope.SUBMIT], size, dark=dark)
            for view in views:
                go(window, view)
                window.wait("!document.querySelector('main').innerText.includes('Loading')")
                if view != "fleet":
                    window.wait("document.querySelector('main').innerText.includes('<img')")
                assert window.cut_off() == [], view
                assert window.small_text() == [], view
                assert window.barriers() == [], view
                assert not window.run("return document.querySelector('main img') !== null")
        go(window, f"job/{cloud.quoted(job)}")
        window.wait("document.querySelector('.view h1')")
        window.run(CANCEL).click()
        assert window.run("return document.querySelector('dialog').open")
        assert window.barriers() == []
        window.run("document.querySelector('dialog .danger').click()")
        window.wait("document.querySelector('.view .badge').textContent === 'cancelled'", 30)
        assert cloud.store.job(job).status == "cancelled"
        assert window.wrong() == []


def test_who_may_only_look_is_shown_no_other_thing_and_gets_none(window):
    with PagedCloud() as cloud:
        job = cloud.job("digits", "paused", reason="below the minimum")
        window.open(cloud.url)
        assert job not in window.driver.page_source
        assert window.barriers() == []
        log_in(window, cloud.url, TOKENS[Scope.READ])
        go(window, f"job/{job}")
        window.wait("document.querySelector('.view h1')")
        assert window.run("return document.querySelectorAll('.does *').length") == 0
        ask = (
            "const [path, done] = arguments;"
            "fetch(path, {method: 'POST', headers: {'X-EdgeVeil': '1'}})"
            ".then((answer) => done(answer.status))"
        )
        for path in (f"/jobs/{job}/cancel", f"/jobs/{job}/resume", "/jobs"):
            assert window.driver.execute_async_script(ask, path) == 403
        assert cloud.store.job(job).status == "paused"
        window.driver.find_element("id", "logout").click()
        window.wait("document.querySelector('#token')")
        assert job not in window.driver.page_source
