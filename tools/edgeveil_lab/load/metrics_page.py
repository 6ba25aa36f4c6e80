"""What a running site's processes tell of themselves on their `/metrics` pages."""

from __future__ import annotations

import math
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from edgeveil_cloud.http_token import read_token
from edgeveil_lab.load.local_site import LocalSite, Target
from edgeveil_lab.load.processes import Figures, Read, Watch
from edgeveil_tools.cloud_client import get_text

_WAIT_S = 5.0  # a process at its limits answers late
_CPU, _RSS = "process_cpu_seconds_total", "process_resident_memory_bytes"
_STARTED, _PEAK = "process_start_time_seconds", "edgeveil_peak_resident_memory_bytes"


def watch_of(site: LocalSite | None, target: Target) -> Watch:
    """Knows the processes of a site that was started here, or asks the running cloud and proxy."""
    watch = Watch()
    if site is not None:
        watch.add(site.pids())
    else:
        watch.add_read("cloud", page(target.cloud, target.token_file))
        watch.add_read("proxy", page(target.proxy_http))
    return watch


def page(url: str | None, token_file: Path | None = None) -> Read:
    """Reads the process behind this HTTP address; OSError says why there are no figures."""

    def read() -> Figures:
        if url is None:
            raise OSError("its HTTP address is not known: name it with --proxy-http URL")
        token = read_token(token_file) if token_file else ""
        return figures(get_text(f"{url.rstrip('/')}/metrics", token, _WAIT_S))

    return read


def figures(text: str) -> Figures:
    """Of a page in Prometheus' text form. Raises OSError if it does not tell them."""
    try:
        families = text_string_to_metric_families(text)
        samples = [s for family in families for s in family.samples if not s.labels]
    except (ValueError, LookupError) as error:
        raise OSError("what it shows at /metrics cannot be read") from error
    found = {s.name: float(s.value) for s in samples if math.isfinite(s.value)}
    if not {_CPU, _RSS, _STARTED} <= found.keys():
        raise OSError("its /metrics tells neither processor time nor memory")
    peak = int(found[_PEAK]) if _PEAK in found else None
    return Figures(found[_CPU], int(found[_RSS]), peak, found[_STARTED])
