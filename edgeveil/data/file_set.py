"""The files of a data set as it is published, and where they are found in a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgeveil.errors import DataError

Half = Literal["train", "test"]


@dataclass(frozen=True)
class FileSet:
    """File names by half. `below` is the folder that the published archive makes, if any."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    below: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All files, as they are published."""
        return self.train + self.test

    def missing(self, folder: Path) -> list[str]:
        """The names that the folder lacks; empty where it can be read."""
        return [name for name in self.names if self._found(folder, name) is None]

    def paths(self, folder: Path | None, half: Half) -> tuple[Path, ...]:
        """One half's files, in their order. Raises DataError that lists what is wanted."""
        listed = ", ".join(self.names)
        if folder is None:
            raise DataError(
                "no folder is named", where="data.path", fix=f"set it to a folder with {listed}"
            )
        if not folder.is_dir():
            raise DataError("no such folder", where=str(folder), fix=f"name one with {listed}")
        found = []
        for name in self.train if half == "train" else self.test:
            path = self._found(folder, name)
            if path is None:
                raise DataError(
                    f"has no {name}" + (" (nor one without .gz)" if name.endswith(".gz") else ""),
                    where=str(folder),
                    fix=f"name the folder with {listed}",
                )
            found.append(path)
        return tuple(found)

    def _found(self, folder: Path, name: str) -> Path | None:
        """The file as it is published, unpacked, or with the dot that some archives write."""
        plain = name.removesuffix(".gz")
        dotted = plain.replace("-idx", ".idx")
        for place in (folder, folder / self.below):
            for one in (name, plain, dotted, f"{dotted}.gz"):
                if (place / one).is_file():
                    return place / one
        return None
