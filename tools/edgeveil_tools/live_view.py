"""What stands on a terminal while something runs: one picture that is drawn again and again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

_REFRESH_PER_S = 4


class Picture(ABC):
    """Used as a context: drawn where there is a terminal; elsewhere only notes show."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(
                get_renderable=self.picture,
                console=self.console,
                refresh_per_second=_REFRESH_PER_S,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    @property
    def live(self) -> bool:
        """Whether the picture is on a terminal now."""
        return self._live is not None

    def note(self, line: str) -> None:
        """A line that stays."""
        self.console.print(Text(line), soft_wrap=True)

    @abstractmethod
    def picture(self) -> RenderableType:
        """What to draw, asked for some times a second."""
