"""Run `edgeveil` with devices that mask their numbers with one seed and seal another to the proxy.

Such a device is sound in all else: it is selected, pays, answers, and its segments open.
"""

import sys

from edgeveil.crypto.keys import MaskSeed
from edgeveil.protocol.sealed import seal_seed
from edgeveil_edge import sealing
from edgeveil_tools.cli import main


def seal_another(_seed, manifest, device, round_key):
    """A seed that nothing is masked with, in place of the one of the masks."""
    return seal_seed(MaskSeed.generate(), manifest, device, round_key)


if __name__ == "__main__":
    vars(sealing)["seal_seed"] = seal_another
    sys.exit(main())
