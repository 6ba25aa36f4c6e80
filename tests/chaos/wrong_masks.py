"""Run `edgeveil` with devices that send the proxy another seed than that of their masks.

Such a device is otherwise correct: it is selected, pays, answers, and its segments open."""

import sys

from edgeveil.crypto.keys import MaskSeed
from edgeveil.protocol.sealed import seal_seed
from edgeveil_edge import sealing
from edgeveil_tools.cli import main


def seal_another(_seed, manifest, device, round_key):
    """Seal a seed that masks nothing, in place of the masks' seed."""
    return seal_seed(MaskSeed.generate(), manifest, device, round_key)


if __name__ == "__main__":
    vars(sealing)["seal_seed"] = seal_another
    sys.exit(main())
