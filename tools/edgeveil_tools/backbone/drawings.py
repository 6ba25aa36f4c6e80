"""Synthetic pictures of digits, drawn with pen strokes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

Float64 = NDArray[np.float64]

SIDE = 40  # pixels of a drawing
INK = 28  # pixels of a digit's longer side
_PER_PIECE = 24  # points between two control points
_PEN = (0.05, 0.18)  # widths, as parts of a digit's height
_JITTER = (0.02, 0.08)  # of the control points, as parts of a digit's height
_ASPECT = (0.64, 1.16)  # width over height

# Shapes of each digit, a paragraph each, separated by slashes. Bars separate strokes; each is a
# curve through points `x,y` in hundredths, y downwards; a point given twice is a corner.
_WRITTEN = """
30,5 10,40 15,85 50,100 85,75 85,25 60,2 25,10 / 50,0 20,15 8,50 20,85 50,100 80,85 92,50 80,15
50,0 / 60,5 30,8 8,45 15,85 45,100 80,85 92,45 75,8 45,2 / 75,15 45,0 12,30 10,75 40,100 80,80
90,35 65,5 40,12

70,0 50,50 30,100 / 50,0 50,50 50,100 / 50,0 48,50 50,100 / 25,25 50,0 50,0 50,100 / 30,22 52,0
52,0 50,100|22,100 80,100 / 50,0 50,100|25,100 75,100

15,20 50,0 80,20 60,55 25,90 25,90 60,88 90,98 / 10,15 60,0 75,35 35,75 5,92 15,78 50,92 95,85 /
10,25 35,2 75,5 85,30 60,62 10,100 10,100 50,98 92,100 / 12,30 40,0 80,15 75,45 40,80 15,95
10,80 30,76 60,92 95,92 / 8,20 45,0 85,20 70,55 8,98 8,98 92,96 / 15,15 55,2 80,25 55,65 20,92
12,82 32,82 55,100 95,85

12,15 45,0 78,20 60,44 45,48 70,52 85,72 65,98 25,98 8,80 / 5,5 80,5 80,5 35,42 35,42 70,48
85,72 55,100 5,95 / 10,12 45,0 82,18 70,40 38,48 38,48 78,58 85,82 50,100 8,88 / 10,2 85,2 85,2
42,40 42,40 80,52 88,78 50,100 8,90 / 15,10 60,0 80,22 55,42 35,46 70,52 85,75 55,98 12,95 / 8,8
50,0 85,22 50,48 50,48 88,70 60,98 10,92

20,0 8,50 8,50 90,50|90,10 85,100 / 60,5 10,60 10,60 55,62 75,55|75,5 72,60 72,100 / 45,0 15,50
30,60 85,50|80,20 70,60 60,100 / 25,0 10,55 10,55 92,55|72,15 70,100 / 65,0 5,65 5,65 95,65|65,0
65,100 / 15,0 12,42 40,55 80,45|85,0 80,50 75,100 / 30,0 15,45 18,52 85,48|80,5 72,100 / 70,0
10,60 10,60 60,62 90,58|75,8 65,100 / 12,5 15,48 15,48 75,45|82,0 80,45 80,100

60,0 25,40 25,40 60,45 75,75 45,100 10,92|60,0 95,0 / 80,0 30,5 15,40 45,45 75,60 70,92 30,100
5,85 / 88,0 22,2 22,2 15,45 15,45 50,38 85,58 75,92 38,100 5,88 / 25,2 20,42 20,42 58,40 86,65
60,100 8,92|25,2 92,4 / 85,5 35,5 20,38 55,45 80,65 60,95 10,95 / 90,0 30,5 25,45 25,45 65,48
75,80 45,100 8,90 / 30,5 22,45 22,45 60,45 78,72 50,98 10,88|30,5 85,0

55,0 25,35 12,75 35,98 70,92 75,68 45,60 18,78 / 35,0 12,45 15,88 50,100 82,80 65,58 35,58 15,78
/ 70,0 35,25 12,65 35,100 75,95 85,70 60,52 30,60 15,80 / 60,0 20,40 12,80 45,100 85,85 75,60
40,58 15,75 / 45,0 15,50 20,90 55,100 80,80 65,60 30,65 15,80 / 80,5 40,15 10,60 25,98 70,98
85,72 55,55 15,75

5,8 90,5 90,5 55,50 38,100 / 8,5 92,5 92,5 50,100|25,50 78,48 / 5,25 10,5 10,5 90,5 90,5 60,45
45,100 / 5,10 50,2 88,8 70,45 55,100 / 8,8 88,8 88,8 72,50 65,100|45,50 95,48 / 5,15 45,8 85,0
60,50 30,100

60,45 25,30 30,5 70,5 75,30 40,52 15,75 30,100 70,98 82,75 60,48 / 45,50 80,20 60,0 30,12 40,45
70,70 60,98 25,95 20,75 45,50 / 80,12 48,0 20,20 48,46 85,76 50,100 12,78 50,46 84,20 72,5 /
50,0 22,12 25,38 50,47 78,35 76,10 50,0|50,47 15,65 18,92 50,100 82,92 85,62 50,47 / 75,20 50,0
22,22 50,50 75,80 45,100 25,80 55,45 85,5 / 85,8 40,0 20,25 60,52 80,80 40,100 15,80 50,50 85,12

70,8 30,5 15,32 45,45 75,20 75,20 60,60 45,100 / 82,15 45,2 15,25 40,48 80,25 80,25 82,75 55,100
20,85 / 60,45 20,35 25,8 65,2 85,25 70,60 30,100 / 82,15 50,0 15,22 30,48 65,42 84,10 84,10
80,50 70,100 / 85,20 55,0 15,18 20,45 60,48 85,20 85,60 60,98 20,92 / 80,12 40,2 15,30 45,50
80,20 80,20 78,100 / 80,10 45,0 18,25 40,45 82,8 70,55 40,100 / 75,15 45,2 18,28 42,48 75,25
78,60 82,100
"""
SHAPES = [[shape.strip() for shape in ways.split("/")] for ways in _WRITTEN.split("\n\n")]


def drawn_digits(count: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return `count` drawings (n, 40, 40), ink 0..1, and their labels (n,), by seed."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count, dtype=np.int64) % 10
    images = np.empty((count, SIDE, SIDE), np.float32)
    for image, digit in zip(images, labels, strict=True):
        image[...] = _drawing(int(digit), rng)
    return images, labels


def _drawing(digit: int, rng: np.random.Generator) -> Float64:
    """Return one centred drawing (40, 40), `INK` pixels at its longest."""
    shapes = SHAPES[digit]
    shape = shapes[rng.integers(len(shapes))]
    jitter = rng.uniform(*_JITTER)
    stretch = np.array([np.exp(rng.uniform(*np.log(_ASPECT))), 1.0])
    pen = np.exp(rng.uniform(*np.log(_PEN)))
    strokes = (
        # control points (k, 2) in parts of a digit's height
        np.array([[float(v) for v in point.split(",")] for point in stroke.split()]) / 100
        for stroke in shape.split("|")
    )
    points = np.concatenate([_curve(p, rng, jitter) * stretch for p in strokes])
    extent = float(np.ptp(points, axis=0).max()) + pen
    points, pen = points * (INK / extent), pen * (INK / extent)
    points += (SIDE - 1) / 2 - (points.min(axis=0) + points.max(axis=0)) / 2
    rows, columns = np.mgrid[:SIDE, :SIDE]
    across = (columns.reshape(-1, 1) - points[:, 0]) ** 2
    distance = np.sqrt((across + (rows.reshape(-1, 1) - points[:, 1]) ** 2).min(axis=1))
    ink: Float64 = np.clip(pen / 2 + 0.5 - distance, 0, 1).reshape(SIDE, SIDE)
    return ink


def _curve(control: Float64, rng: np.random.Generator, jitter: float) -> Float64:
    """Return points (m, 2) along a Catmull-Rom spline through the moved control points."""
    moves = rng.normal(size=control.shape) * jitter
    for k in np.flatnonzero((control[1:] == control[:-1]).all(axis=1)):
        moves[k + 1] = moves[k]  # a corner stays one point
    p = control + moves
    p = np.concatenate([2 * p[:1] - p[1:2], p, 2 * p[-1:] - p[-2:-1]])
    t = np.linspace(0, 1, _PER_PIECE)[:, None]
    a, b, c, d = (p[k : len(p) - 3 + k, None] for k in range(4))
    pieces = (
        2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3
    )
    return np.asarray(pieces.reshape(-1, 2) / 2)


PIXELS = 28  # rows and columns of the encoder's input
_DRAWN_SHARE = 0.6  # of a batch; the rest are scanned


@dataclass(frozen=True)
class PublicDigits:
    """Drawn digits and scikit-learn's: (n, 1, 40, 40) float32, ink 0..1; labels (n,) int64."""

    drawn: torch.Tensor
    drawn_labels: torch.Tensor
    scanned: torch.Tensor
    scanned_labels: torch.Tensor

    @classmethod
    def load(cls, drawings: int, seed: int) -> PublicDigits:
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
        """Return images (size, 1, 28, 28) and labels (size,), by torch's own generator."""
        drawn = torch.randint(len(self.drawn), (round(size * _DRAWN_SHARE),))
        scanned = torch.randint(len(self.scanned), (size - len(drawn),))
        images = torch.cat([self.drawn[drawn], self.scanned[scanned]])
        labels = torch.cat([self.drawn_labels[drawn], self.scanned_labels[scanned]])
        return inked(warped(images)), labels


def warped(images: torch.Tensor) -> torch.Tensor:
    """Turn, slant, stretch, bend and centre (n, 1, 40, 40); returns (n, 1, 28, 28)."""
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
    """Vary the pens of (n, 1, h, w) by a random blur, then a soft threshold."""
    n = len(images)
    blurred = functional.avg_pool2d(functional.avg_pool2d(images, 3, 1, 1), 3, 1, 1)
    mixed = torch.lerp(images, blurred, torch.rand(n, 1, 1, 1))
    mixed = mixed / mixed.amax((1, 2, 3), keepdim=True).clamp_min(1e-3)
    level, edge = 0.2 + 0.4 * torch.rand(n, 1, 1, 1), 4 + 12 * torch.rand(n, 1, 1, 1)
    paper = torch.sigmoid(-level * edge)
    ink = (torch.sigmoid((mixed - level) * edge) - paper) / (1 - paper)
    return (ink * (1 + 0.3 * _even(n)).reshape(n, 1, 1, 1)).clamp(0, 1)


def _even(n: int) -> torch.Tensor:
    """Return (n,) uniform values in (-1, 1)."""
    return 2 * torch.rand(n) - 1
