"""The public images that the encoder learns from, each time warped and inked anew."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from edgeveil_tools.backbone.strokes import INK, SIDE, drawn_digits

PIXELS = 28  # rows and columns of what the encoder takes
_DRAWN_SHARE = 0.6  # of a batch; the rest are scanned


@dataclass(frozen=True)
class PublicDigits:
    """Digits drawn from strokes, and those that ship with scikit-learn: 1797 by 43 writers.

    Images are (n, 1, 40, 40) float32, ink 0..1; labels (n,) int64.
    """

    drawn: torch.Tensor
    drawn_labels: torch.Tensor
    scanned: torch.Tensor
    scanned_labels: torch.Tensor

    @classmethod
    def load(cls, drawings: int, seed: int) -> PublicDigits:
        """`drawings` new drawings, and all of scikit-learn's digits."""
        from sklearn.datasets import load_digits

        images, labels = drawn_digits(drawings, seed)
        digits = load_digits()
        small = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
        large = functional.interpolate(small, size=(INK, INK), mode="bicubic").clamp(0, 1)
        return cls(
            torch.from_numpy(images)[:, None],
            torch.from_numpy(labels),
            functional.pad(large, [(SIDE - INK) // 2] * 4),
            torch.tensor(digits.target, dtype=torch.int64),
        )

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Images (size, 1, 28, 28) and labels (size,), by torch's own generator."""
        drawn = torch.randint(len(self.drawn), (round(size * _DRAWN_SHARE),))
        scanned = torch.randint(len(self.scanned), (size - len(drawn),))
        images = torch.cat([self.drawn[drawn], self.scanned[scanned]])
        labels = torch.cat([self.drawn_labels[drawn], self.scanned_labels[scanned]])
        return inked(warped(images)), labels


def warped(images: torch.Tensor) -> torch.Tensor:
    """(n, 1, 40, 40) -> (n, 1, 28, 28): turned, slanted, stretched and bent at random.

    The ink's centre of mass comes to the middle, up to a small move.
    """
    n = len(images)
    places = (2 * torch.arange(SIDE) + 1) / SIDE - 1
    mass = images.sum((1, 2, 3)).clamp_min(1e-3)
    x = (images.sum((1, 2)) * places).sum(1) / mass
    y = (images.sum((1, 3)) * places).sum(1) / mass
    angle, slant = 0.3 * _even(n), 0.4 * _even(n)
    across, down = torch.exp(0.22 * _even(n)), torch.exp(0.15 * _even(n))
    cos, sin = torch.cos(angle), torch.sin(angle)
    rows = [cos / across, (slant * cos - sin) / across, x + 0.08 * _even(n)]
    rows += [sin / down, (slant * sin + cos) / down, y + 0.08 * _even(n)]
    theta = torch.stack(rows, dim=1).reshape(n, 2, 3)
    grid = functional.affine_grid(theta, [n, 1, PIXELS, PIXELS], align_corners=False)
    bends = torch.randn(n, 2, 5, 5) * 0.07 * torch.rand(n, 1, 1, 1)
    bends = functional.interpolate(bends, size=(PIXELS, PIXELS), mode="bicubic", align_corners=True)
    grid = grid + bends.permute(0, 2, 3, 1)
    return functional.grid_sample(images, grid, mode="bilinear", align_corners=False)


def inked(images: torch.Tensor) -> torch.Tensor:
    """(n, 1, h, w) with pens of other widths and edges: a random blur, then a soft threshold."""
    n = len(images)
    blurred = functional.avg_pool2d(functional.avg_pool2d(images, 3, 1, 1), 3, 1, 1)
    mixed = torch.lerp(images, blurred, torch.rand(n, 1, 1, 1))
    mixed = mixed / mixed.amax((1, 2, 3), keepdim=True).clamp_min(1e-3)
    level, edge = 0.2 + 0.4 * torch.rand(n, 1, 1, 1), 4 + 12 * torch.rand(n, 1, 1, 1)
    paper = torch.sigmoid(-level * edge)
    ink = (torch.sigmoid((mixed - level) * edge) - paper) / (1 - paper)
    return (ink * (1 + 0.3 * _even(n)).reshape(n, 1, 1, 1)).clamp(0, 1)


def _even(n: int) -> torch.Tensor:
    """(n,) values even over (-1, 1)."""
    return 2 * torch.rand(n) - 1
