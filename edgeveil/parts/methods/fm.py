"""Re-expanded functional mechanism for a softmax head (`fm`).

Around each broadcast W the cross-entropy is a second-order polynomial of ΔW whose coefficients
are sums over records (Zhang et al. 2012, functional mechanism). The linear ones are perturbed
every round; the quadratic ones, bounded by Böhning (1992), once or never; and devices minimise
their own perturbed polynomial, which is post-processing. Each round is one expansion: a round on
an old polynomial would only be more local steps, which cost no ε and no round. A federated PCA of
the features (`features/pca.py`) may come first. Proofs: `docs/privacy.md`.
"""

from __future__ import annotations

from edgeveil.parts.methods.fm_cloud import FmCloud
from edgeveil.parts.methods.fm_device import FmDevice
from edgeveil.parts.methods.fm_parameters import FmParameters, Shares

__all__ = ["FmCloud", "FmDevice", "FmParameters", "Shares"]
