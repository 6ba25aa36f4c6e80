"""What a lost proxy or broker costs a round: `python -m tests.kits.outage_times [--kills 6]`.

A job of five devices, each a process. In every second round the proxy, or the edge broker, is ended
by `kill -9` in the middle of the round and started again at once. Prints the seconds from one
committed round to the next, without and with a kill.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.kits.live_site import LiveSite, wait_for

DEVICES = 5
LIMIT_S = 120.0
MIDDLE_S = 1.0  # answers leave within 2 s of the round's start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=6, help="of each of the two")
    kills = parser.parse_args().kills
    with tempfile.TemporaryDirectory() as folder, LiveSite(Path(folder), DEVICES) as live:
        live.start("cloud", live.site.cloud)
        live.start("proxy", live.site.proxy)
        for number, edge in enumerate(live.site.edges, 1):
            live.start(f"edge-{number}", edge)
        live.wait_ready()
        for name, lose in (("proxy", lose_proxy), ("edge broker", lose_broker)):
            plain_s, lost_s = round_times(live, lose, kills)
            print(f"{name}: {_told(plain_s)} s a round; {_told(lost_s)} s when lost", flush=True)


def lose_proxy(live: LiveSite) -> None:
    """`kill -9`, and start it again."""
    live.stop("proxy", signal.SIGKILL)
    live.start("proxy", live.site.proxy)


def lose_broker(live: LiveSite) -> None:
    """The edge broker likewise."""
    broker = live.brokers["edge"]
    os.kill(broker.pid or 0, signal.SIGKILL)
    broker.stop()
    broker.start()


def round_times(
    live: LiveSite, lose: Callable[[LiveSite], None], kills: int
) -> tuple[list[float], list[float]]:
    """Seconds of the rounds without and with a loss."""
    job = live.submit(rounds=2 * kills, every=0)
    begun = len(live.log("cloud"))
    first = 3  # the two before it are the method's own sums
    lossy = range(first + 1, first + 2 * kills, 2)
    for index in lossy:
        wait_for(lambda index=index: _is_held(live, begun, index), f"round {index}", LIMIT_S)
        time.sleep(MIDDLE_S)
        lose(live)
    wait_for(lambda: live.client.job(job)["ended_at"], "the job's end", LIMIT_S)
    found = live.client.job(job)
    if found["status"] != "completed":
        raise AssertionError(f"the job is {found['status']}: {found['reason']}")
    at_s = {exchange["index"]: exchange["committed_at"] for exchange in found["exchanges"]}
    took_s = {index: at_s[index] - at_s[index - 1] for index in range(first, max(at_s) + 1)}
    return (
        [seconds for index, seconds in took_s.items() if index not in lossy],
        [took_s[index] for index in lossy],
    )


def _is_held(live: LiveSite, begun: int, index: int) -> bool:
    """Whether the proxy holds this round, by the cloud's log of this job."""
    lines = live.log("cloud")[begun:].splitlines()
    return any(": held " in line and line.endswith(f" round={index}") for line in lines)


def _told(seconds: list[float]) -> str:
    middle, most = statistics.median(seconds), max(seconds)
    return f"{middle:.1f} (at most {most:.1f})"


if __name__ == "__main__":
    main()
