"""One target under libFuzzer: `python -m tests.fuzz.child NAME [libFuzzer's options]`.

A process of its own, since libFuzzer ends the process that it runs in. The options' last is the
corpus folder or a file to replay.
"""

import logging
import sys

import atheris

from edgeveil_tools.lifeline import watch

# Instrumented is what an input should explore. Other libraries would only slow the loop down; so
# would YAML's parser, which is Python, for all targets but its own.
_OURS = [
    "edgeveil",
    "edgeveil_cloud",
    "edgeveil_edge",
    "edgeveil_proxy",
    "edgeveil_tools",
    "edgeveil_lab",
    "tests.fuzz",
]


def main(argv):
    """Never returns."""
    watch()
    name = argv[1]
    logging.disable(logging.CRITICAL)  # libFuzzer speaks on standard error
    packages = [*_OURS, "yaml"] if name == "yaml" else _OURS
    with atheris.instrument_imports(include=packages, exclude=["tests.fuzz.target"]):
        from tests.fuzz.table import target

        chosen = target(name)
        for seed in chosen.seeds():  # what is imported late is imported here
            chosen.feed(seed)
    atheris.Setup([argv[0], *argv[2:]], chosen.feed)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
