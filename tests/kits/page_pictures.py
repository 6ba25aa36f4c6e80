"""`python -m tests.kits.page_pictures`: draws docs/images/page-*.png at two widths.

The pages show a made-up store of jobs."""

import io
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

from PIL import Image

from edgeveil_cloud.http_guard import Scope
from edgeveil_cloud.pages.fleet import CloudFacts
from tests.kits.browser import browser
from tests.kits.paged_cloud import TOKENS, PagedCloud

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SIZES = {"wide": (1280, 900), "phone": (390, 844)}
MOST_BYTES = 150_000
_TALLEST = {"wide": 1250, "phone": 1500}
_COLOURS = 96
_PAUSED = (
    "20 selected, 2 uploaded, 0 declined, 18 late or absent: below the minimum; look at the devices"
    " (the proxy's /status counts those online); a job submitted anew may give them more time"
    " (round.deadline_s) or attempts (round.retries), then: edgeveil job resume "
)


def made_up_facts():
    """Return the status facts of a cloud with two cells."""
    of, now = SimpleNamespace, datetime.now(UTC)
    moved = {"in": 48_211_200, "out": 9_120_300}
    one = of(connected=True, connections=1, unacknowledged=0, bytes=moved)
    days = {"snapshot": 12, "delegations": 140, "root": 1700}
    trust = of(expires={what: now + timedelta(n) for what, n in days.items()})
    broker = of(cert_file=None, ca_file=None)
    site = of(state_dir=IMAGES, http=of(tls=None), broker=broker, cells=())
    return CloudFacts(site, {"north": one, "south": one}, trust)


def filled(cloud):
    """Fill a store with jobs in every state; return the views to draw by name."""
    for cell, count in (("north", 12), ("south", 8)):
        keys = {bytes([ord(cell[0]), k]) * 16 for k in range(count)}
        cloud.store.set_enrolled(keys, cell)
    cloud.job("digits-eps-8", "completed")
    cloud.job("digits-eps-1", "completed")
    cloud.job("vibration", "failed", reason="all 20 devices declined: their owners allow less")
    running = cloud.job("digits-night", "running")
    paused = cloud.job("meters", "running")
    cloud.store.set_status(paused, "paused", f"{_PAUSED}{paused}")
    cloud.job("cameras", "queued")
    return {"jobs": "jobs", "job": f"job/{running}", "fleet": "fleet"}


def draw(window, path, tallest):
    """Return the current page as PNG bytes with few colours."""
    height = min(tallest, int(window.run("return document.documentElement.scrollHeight")))
    width = int(window.run("return innerWidth"))
    window.resize((width, height))
    time.sleep(0.5)  # figures are drawn at the size of their boxes
    shown = Image.open(io.BytesIO(window.driver.get_screenshot_as_png())).convert("RGB")
    shown.quantize(_COLOURS).save(path, optimize=True)
    return path.stat().st_size


def main():
    with browser() as window, PagedCloud(made_up_facts()) as cloud:
        views = filled(cloud)
        window.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        for kind, size in SIZES.items():
            dark = kind == "phone"
            window.driver.delete_all_cookies()
            window.open(cloud.url, size, dark=dark)
            window.driver.find_element("id", "token").send_keys(TOKENS[Scope.SUBMIT])
            window.driver.find_element("css selector", "form button").click()
            window.wait("document.querySelector('main h1')?.textContent === 'Jobs'")
            for name, view in views.items():
                window.resize(size)
                window.run("location.hash = arguments[0]", f"#/{view}")
                time.sleep(1.5)
                count = draw(window, IMAGES / f"page-{name}-{kind}.png", _TALLEST[kind])
                print(f"page-{name}-{kind}.png: {count:,} bytes")
                if count > MOST_BYTES:
                    raise SystemExit(f"more than {MOST_BYTES:,} bytes: draw less of the page")


if __name__ == "__main__":
    main()
