"""Processor time and memory from a process's own page, over real HTTP."""

import asyncio

import psutil
import pytest

from edgeveil.errors import EdgeVeilError
from edgeveil.transport.metrics import Metrics
from edgeveil_cloud.http import make_app
from edgeveil_cloud.http_guard import Scope
from edgeveil_cloud.store import Store
from edgeveil_lab.load.processes import ProcessFigures, figures, page

TOKEN = "t" * 43


class Idle:
    """A cloud without jobs."""

    def status(self):
        return {}


ALL = """\
process_cpu_seconds_total 12.5
process_resident_memory_bytes 1e+08
process_start_time_seconds 1.7e+09
"""


def fetched(path, token_file=None):
    """Read the page of a cloud that requires TOKEN, in this process."""
    metrics = Metrics()

    async def body():
        app = make_app(Store(), Idle(), lambda: {Scope.READ: TOKEN}, metrics=metrics)
        server = await app.start()
        try:
            return await asyncio.to_thread(page, server.url + path, token_file)
        finally:
            await server.stop()

    return asyncio.run(body())


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "http.token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


def test_a_page_tells_what_the_kernel_says_of_the_process(token_file):
    found, me = fetched("/", token_file), psutil.Process()
    assert 0 < found.cpu_s <= sum(me.cpu_times()[:2])
    assert min(found.rss_bytes, found.peak_bytes) > 1 << 20
    assert found.started_s == pytest.approx(me.create_time(), abs=1.0)


def test_a_page_that_wants_another_token_or_is_not_there_says_so(token_file, tmp_path):
    with pytest.raises(OSError, match="Unauthorized"):
        fetched("")
    with pytest.raises(EdgeVeilError, match="no cloud"):
        fetched("/elsewhere", token_file)
    with pytest.raises(OSError, match="refused"):
        page("http://127.0.0.1:1")
    with pytest.raises(OSError, match="--proxy-http URL"):
        page(None)


@pytest.mark.parametrize(
    "text",
    [
        "<html>",
        'process_cpu_seconds_total{a="',
        ALL.replace("12.5", "NaN"),
        ALL.replace("process_resident_memory_bytes", 'process_resident_memory_bytes{of="x"}'),
        *("".join(ALL.splitlines(True)[:n] + ALL.splitlines(True)[n + 1 :]) for n in range(3)),
    ],
)
def test_half_a_page_is_none_but_the_kernels_mark_may_lack(text):
    with pytest.raises(OSError, match="/metrics"):
        figures(text)
    assert figures(ALL) == ProcessFigures(12.5, 10**8, None, 1.7e9)
