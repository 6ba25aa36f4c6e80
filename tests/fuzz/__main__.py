"""`python -m tests.fuzz`: hostile inputs for every decoder and parser, led by coverage.

Each target runs under libFuzzer in its own process, which ends with this one.
"""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from edgeveil.errors import EdgeVeilError, UsageError
from edgeveil_tools.lifeline import Lifeline
from tests.fuzz.table import NAMES, target

TIMEOUT_S, RSS_MB = 10, 1024  # more for one input is a finding
LINES = 40  # of the log of a target with a finding


def _parser():
    made = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    made.add_argument("targets", nargs="*", metavar="TARGET", help="names; none: all")
    made.add_argument("--runs", type=int, default=1_000_000, help="inputs per target")
    made.add_argument("--seed", type=int, default=0, help="for the same inputs again; 0: others")
    made.add_argument("--out", type=Path, default=Path("out/fuzz"), help="where findings go")
    made.add_argument("--list", action="store_true", help="name the targets and end")
    made.add_argument("--replay", type=Path, metavar="FILE", help="feed this input, no fuzzing")
    return made


def main(argv=None):
    """0: nothing found; 1: findings; 2: wrong use; 130: interrupted."""
    options = _parser().parse_args(argv)
    if options.list:
        print("\n".join(NAMES))
        return 0
    try:
        if options.replay:
            taken = [target(name).feed(options.replay.read_bytes()) for name in options.targets]
            print(", ".join("taken" if one else "refused" for one in taken))
            return 0
        found = [_finds(name, options) for name in options.targets or NAMES]
        return int(any(found))
    except EdgeVeilError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _finds(name, options):
    chosen = target(name)
    if importlib.util.find_spec("atheris") is None:
        raise UsageError("atheris is not installed", fix="pip install 'edgeveil[fuzz]'")
    options.out.mkdir(parents=True, exist_ok=True)
    lifeline, start_s = Lifeline(), time.monotonic()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as made:
        folder, corpus = Path(made), Path(made, "corpus")
        corpus.mkdir()
        for number, seed in enumerate(chosen.seeds()):
            (corpus / f"seed-{number:03}").write_bytes(seed)
        words = ("".join(f"\\x{byte:02x}" for byte in word) for word in chosen.words)
        (folder / "words.dict").write_text("".join(f'"{word}"\n' for word in words))
        command = [sys.executable, "-m", "tests.fuzz.child", name, f"-runs={options.runs}"]
        command += [f"-timeout={TIMEOUT_S}", f"-rss_limit_mb={RSS_MB}", f"-seed={options.seed}"]
        command += [f"-max_len={chosen.max_bytes}", f"-artifact_prefix={options.out}/{name}-"]
        command += ["-keep_seed=1", "-close_fd_mask=1"]
        command += [f"-dict={folder / 'words.dict'}"] * bool(chosen.words)  # none may be empty
        environment = {**os.environ, "TMPDIR": made, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, str(corpus)],
            env=environment | lifeline.environment,
            pass_fds=[lifeline.child_fd],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    lifeline.close()
    fed = re.findall(r"^#\d+\s+DONE.*", done.stderr, re.MULTILINE)
    seconds = time.monotonic() - start_s
    print(f"{name:16}{seconds:8.0f} s  {(fed or ['ended early'])[-1]}", flush=True)
    if done.returncode or not fed:
        print("\n".join(done.stderr.splitlines()[-LINES:]), file=sys.stderr)
    return bool(done.returncode or not fed)


if __name__ == "__main__":
    sys.exit(main())
