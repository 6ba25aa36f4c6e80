"""What a person sees of bare load: live figures, and one table with a column for each broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from edgeveil.sites.addresses import BrokerAddress
from edgeveil_lab.load.bare.clients import Show
from edgeveil_lab.load.bare.options import BareOptions
from edgeveil_lab.load.display import (
    PERCENTILES,
    Figure,
    measured,
    ms,
    rate,
    shortened,
    side_by_side,
)
from edgeveil_tools.display import LiveDisplay

Result = Mapping[str, Any]
LATENCIES = (
    ("connect_s", "until connected"),
    ("ack_s", "until acknowledged"),
    ("end_to_end_s", "end to end"),
)

# --- the result ---


def figures(result: Result) -> Iterator[Figure]:
    """The rows of the table; what was not measured at any broker is left out."""
    brokers = result["brokers"]
    connected = (f"{one['connects']:,} of {one['clients']:,}" for one in brokers)
    yield Figure("MQTT", tuple("5" if one["protocol"] == 5 else "3.1.1" for one in brokers))
    yield Figure("connected", tuple(connected))
    for key, name in (
        ("connects_per_s", "connections a second"),
        ("sent_per_s", "messages sent a second"),
        ("acknowledged_per_s", "acknowledged a second"),
        ("received_per_s", "received a second"),
    ):
        yield from measured(name, [one[key] for one in brokers], rate)
    for way in ("up", "down"):
        yield from measured(f"MB a second, {way}", [b["mb_per_s"][way] for b in brokers], rate)
    for key, name in LATENCIES:
        for percentile in PERCENTILES:
            yield from measured(f"{name}, {percentile}", [b[key][percentile] for b in brokers], ms)
    if any(one["received_per_s"] is not None and one["sent"] for one in brokers):
        yield Figure("lost", tuple(f"{one['lost']:,}" for one in brokers))
    yield Figure("failures", tuple(shortened(one["failures"]) for one in brokers))


def notes(result: Result) -> Iterator[str]:
    """What stands against the figures."""
    several = len(result["brokers"]) > 1
    for one in result["brokers"]:
        for note in one["notes"]:
            yield f"{one['broker']}: {note}" if several else note


def order_text(result: Result) -> str:
    """Whose turn was when; nothing of one broker."""
    if len(result["brokers"]) == 1:
        return ""
    return "turns: " + ", ".join(str(BrokerAddress.parse(url)) for url in result["order"])


def show_bare_result(console: Console, result: Result) -> None:
    """Print the table."""
    names = [one["broker"] for one in result["brokers"]]
    console.print()
    console.print(side_by_side(result["mode"], names, figures(result)))
    if order := order_text(result):
        console.print(Text(order), soft_wrap=True)
    for note in notes(result):
        console.print(Text(note, style="yellow"), soft_wrap=True)
    console.print()


# --- while it runs ---

_LINE_S = 5.0


class BareView(LiveDisplay):
    """A live picture on a terminal, a line now and then elsewhere."""

    def __init__(
        self,
        options: BareOptions,
        console: Console,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(console)
        self._options, self._now_s = options, now_s
        self._place, self._newest = "", dict[str, Any]()
        self._said, self._said_s = ("", ""), 0.0

    def of(self, url: str) -> Show:
        """From now on samples are of this broker; who takes them."""
        self._place, self._newest = str(BrokerAddress.parse(url)), {}
        return self._update

    def _update(self, sample: dict[str, Any]) -> None:
        self._newest = sample
        said, now_s = (self._place, sample["phase"]), self._now_s()
        if not self.live and (said != self._said or now_s - self._said_s >= _LINE_S):
            self._said, self._said_s = said, now_s
            told = " · ".join(self._figures())
            self.note(f"{sample['t_s']:7.1f} s  {self._place}: {sample['phase']}: {told}")

    def picture(self) -> RenderableType:
        """All of it, for a terminal."""
        sample = self._newest
        head = Table.grid(padding=(0, 1))
        phase = Text(sample.get("phase", "starting"), style="bold")
        head.add_row(
            ProgressBar(total=1.0, completed=self._share(), width=28), Text(self._place), phase
        )
        if not sample:
            return head
        lines = [Text(" · ".join(self._figures()), no_wrap=True)]
        if sample["failures"]:
            lines.append(Text(f"failed: {shortened(sample['failures'])}", style="yellow"))
        return Group(head, *lines)

    def _share(self) -> float:
        options, sample = self._options, self._newest
        if not sample or sample["phase"] == "connecting":
            return 0.0
        return min(1.0, sample["t_s"] / options.duration_s) if options.duration_s else 0.0

    def _figures(self) -> list[str]:
        sample = self._newest
        rates = {key: sample[f"{key}_per_s"] for key in ("sent", "acknowledged", "received")}
        moved = sample["bytes_up_per_s"] + sample["bytes_down_per_s"]
        return [
            f"{sample['connected']:,} of {self._options.connections:,} connected",
            *(f"{rate(value)} {key}/s" for key, value in rates.items() if value),
            f"{rate(moved / 1e6)} MB/s",
        ]
