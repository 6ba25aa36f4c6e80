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
from tests.kits.cloud_control import StoreControl

TOKEN = "t" * 43


ALL = """\
process_cpu_seconds_total 12.5
process_resident_memory_bytes 1e+08
process_start_time_seconds 1.7e+09
"""


def fetched(path, token_file=None):
    """Read the page of a cloud that requires TOKEN, in this process."""
    metrics = Metrics()

    async def body():
        control = StoreControl(Store())
        app = make_app(control.store, control, lambda: {Scope.READ: TOKEN}, metrics=metrics)
        server = await app.start()
        try:
            return await asyncio.to_thread(page, server.url + path, token_file)
        finally:
            await server.stop()

    return asyncio.run(body())


def test_a_page_tells_what_the_kernel_says_of_the_process(tmp_path):
    token_file = tmp_path / "http.token"
    token_file.write_text(TOKEN + "\n")
    token_file.chmod(0o600)
    found, me = fetched("/", token_file), psutil.Process()
    assert 0 < found.cpu_s <= sum(me.cpu_times()[:2])
    assert min(found.rss_bytes, found.peak_bytes) > 1 << 20
    assert found.started_s == pytest.approx(me.create_time(), abs=1.0)
    with pytest.raises(OSError, match="Unauthorized"):
        fetched("")
    with pytest.raises(EdgeVeilError):
        fetched("/elsewhere", token_file)
    for nowhere in ("http://127.0.0.1:1", None):
        with pytest.raises(OSError, match=r"refused|--proxy-http"):
            page(nowhere)


@pytest.mark.parametrize(
    "text",
    [
        "<html>",
        ALL.replace("12.5", "NaN"),
        ALL.replace("process_resident_memory_bytes", 'process_resident_memory_bytes{of="x"}'),
        ALL[: ALL.rindex("process_")],
    ],
)
def test_half_a_page_is_none_but_the_kernels_mark_may_lack(text):
    with pytest.raises(OSError, match="/metrics"):
        figures(text)
    assert figures(ALL) == ProcessFigures(12.5, 10**8, None, 1.7e9)
