"""A real browser for tests of pages, with access to its console.

Tests are skipped if Chromium, its driver or selenium is missing; tests of accessibility also if
axe-core is neither cached nor available by npm (pinned by its digest)."""

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

PHONE, DESK = (390, 844), (1280, 900)
AXE = "axe-core@4.14.1"
_AXE_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_NPM_S = 60.0

# Before any script of the page, so that nothing that goes wrong on it is missed.
_WATCH = """
window.__wrong = [];
document.addEventListener("securitypolicyviolation", (e) =>
  window.__wrong.push(`policy: ${e.violatedDirective} ${e.blockedURI} ${e.sample}`));
window.addEventListener("error", (e) => window.__wrong.push(`error: ${e.message}`), true);
window.addEventListener("unhandledrejection", (e) => window.__wrong.push(`rejected: ${e.reason}`));
"""
_NARROW_TEXT = """
const least = arguments[0], found = [];
for (const one of document.querySelectorAll("body *")) {
  const said = [...one.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  const box = one.getBoundingClientRect();
  if (!said || !box.width || !box.height || one.closest(".quiet")) continue;
  const svg = one.ownerSVGElement;
  const scale = svg && svg.viewBox.baseVal && svg.viewBox.baseVal.width
    ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
  const size = parseFloat(getComputedStyle(one).fontSize) * scale;
  if (size < least - 0.01) found.push(`${size} px: ${one.textContent.trim().slice(0, 40)}`);
}
return found;
"""
_CUT_OFF = """
const found = [], wide = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth > wide) found.push("the page scrolls sideways");
for (const one of document.querySelectorAll("body *")) {
  const box = one.getBoundingClientRect();
  if (box.width && box.right > wide + 1 && !one.closest(".scroll, .quiet, .skip"))
    found.push(`${one.tagName}.${one.getAttribute("class")} ends at ${Math.round(box.right)}`);
}
return found.slice(0, 5);
"""


class Browser:
    def __init__(self, driver):
        self.driver = driver

    def open(self, url, size=DESK, *, dark=False):
        self.resize(size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._devtools("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get(url)

    def resize(self, size):
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition, timeout_s=20.0):
        """Return a JavaScript expression's value once it is true; raises selenium's timeout."""
        from selenium.webdriver.support.ui import WebDriverWait

        def look(_driver):
            return self.run(f"return {condition}")

        return WebDriverWait(self.driver, timeout_s, 0.05).until(look, condition)

    @property
    def text(self):
        return " ".join(str(self.run("return document.body.innerText")).split())

    def wrong(self):
        """Return script errors, rejected promises, content policy violations and console errors.

        Requests of the previous page to a server that has stopped are left out."""
        console = self.driver.get_log("browser")
        errors = [str(line["message"]) for line in console if line["level"] == "SEVERE"]
        here = str(self.run("return location.origin"))
        own = [one for one in errors if one.startswith(here) or "CONNECTION_REFUSED" not in one]
        return [*self.run("return window.__wrong || []"), *own]

    def barriers(self):
        """Return axe-core's accessibility violations, one line per rule."""
        self._devtools("Runtime.evaluate", {"expression": axe_source()})
        found = self.driver.execute_async_script(
            "axe.run({resultTypes: ['violations']}).then((r) => arguments[0](r.violations))"
        )
        return [f"{one['id']}: {one['nodes'][0]['html'][:160]}" for one in found]

    def small_text(self, least_px=12.0):
        return list(self.run(_NARROW_TEXT, least_px))

    def cut_off(self):
        return list(self.run(_CUT_OFF))

    def picture(self, path):
        height = self.run("return document.documentElement.scrollHeight")
        width = self.run("return innerWidth")
        self.resize((width, height))
        self.driver.save_screenshot(str(path))

    def _devtools(self, command, values):
        return self.driver.execute_cdp_cmd(command, values)


@contextmanager
def browser():
    """Yield a headless browser; skips the test if none is installed."""
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program = next(filter(None, map(shutil.which, _BROWSERS)), None)
    driver_program = shutil.which("chromedriver")
    if program is None or driver_program is None:
        pytest.skip("Chromium or chromedriver is not installed")
    options = selenium.ChromeOptions()
    options.binary_location = program
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = selenium.Chrome(options, selenium.ChromeService(driver_program))
    try:
        made = Browser(driver)
        made._devtools("Page.addScriptToEvaluateOnNewDocument", {"source": _WATCH})
        yield made
    finally:
        driver.quit()


@cache
def axe_source():
    """Return axe-core's script from a cache or npm; skips the test if unavailable."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgeveil-tests"
    kept = folder / f"{AXE}.js"
    raw = kept.read_bytes() if kept.exists() else b""
    if hashlib.sha256(raw).hexdigest() != _AXE_SHA256:
        raw = _packed_axe()
        if hashlib.sha256(raw).hexdigest() != _AXE_SHA256:
            pytest.fail(f"{AXE} is not the one whose digest is pinned")
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(raw)
    return raw.decode()


def _packed_axe():
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"{AXE} is not in the cache, and npm is not installed")
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            [npm, "pack", AXE, "--silent"], cwd=folder, capture_output=True, timeout=_NPM_S
        )
        files = list(Path(folder).glob("*.tgz"))
        if packed.returncode or not files:
            pytest.skip(f"{AXE} is not in the cache, and npm cannot fetch it")
        with tarfile.open(fileobj=io.BytesIO(files[0].read_bytes())) as archive:
            member = archive.extractfile("package/axe.min.js")
            return member.read() if member else b""
