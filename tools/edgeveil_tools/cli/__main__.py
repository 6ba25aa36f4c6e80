"""`python -m edgeveil_tools.cli`: the command without its script."""

import sys

from edgeveil_tools.cli import run

if __name__ == "__main__":
    sys.exit(run())
