"""One target under libFuzzer: `python -m tools.fuzz.child NAME [libFuzzer's options]`.

A process of its own, since libFuzzer ends the process that it runs in. The options' last is the
corpus folder or a file to replay.
"""

from __future__ import annotations

import sys

import atheris

# What is imported here is instrumented; the libraries below it are not, as they would only
# slow the loop down. YAML's parser is Python, and its paths are what an input explores.
with atheris.instrument_imports(
    include=["fl_core", "cloud_server", "edge_client", "proxy", "tools", "yaml"],
    exclude=["tools.fuzz.target"],
):
    from tools.fuzz.table import target


def main(argv: list[str]) -> None:
    """Never returns."""
    with atheris.instrument_imports(
        include=["fl_core", "cloud_server", "edge_client", "proxy", "tools", "yaml"],
        exclude=["tools.fuzz.target"],
    ):
        chosen = target(argv[1])
        for seed in chosen.seeds():  # what is imported late, is imported here
            chosen.feed(seed)
    atheris.Setup([argv[0], *argv[2:]], chosen.feed)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
