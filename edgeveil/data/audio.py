"""Encode a recording as numbers by public rules, a function of that recording alone, bit for bit.

Samples, filters and Fourier coefficients are integers, so that sums are exact; the logarithm is a
comparison with public thresholds. `logmel`: mel scale as in O'Shaughnessy 1987, triangular filters
(Davis and Mermelstein 1980), windows of 40 ms every 20 ms (Zhang et al. 2017)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.config.base import Block

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
LEVELS = 255
FULL_SCALE = 1 << 15  # steps of a sample of 1
_QUIET = 1e-3  # least peak that is raised to full scale
_WINDOW_S, _STEP_S = 0.040, 0.020
_RANGE_DB = 50.0
_LOUDNESS_STEP = 1 << 8
_HEADROOM = 3  # a tone's loudness in its band, over that in one bin
_STEPS = 1 << 14  # of a filter's largest weight
_CROSSINGS = 16  # zeros of the resampling filter on each side
MOST_PHASES = 1 << 14  # of the resampling filter, by the smallest whole ratio of two rates
_BLOCK = 512  # samples resampled at a time, to bound memory


class AudioForm(Block):
    """The form of records from recordings; channels are averaged, the peak raised to full scale."""

    rate_hz: int = Field(default=8000, ge=4000, le=48_000)
    """Samples a second; recordings of another rate are resampled."""
    seconds: float = Field(default=1.0, ge=0.05, le=30)
    """Length of a record: longer recordings are cut, shorter ones padded with silence."""
    form: Literal["logmel", "waveform"] = "logmel"
    """`logmel`: loudness by pitch and time, [bands, frames] in 0 to 255, a frame every 20 ms, as a
    grey picture. `waveform`: [samples] in -1 to 1."""
    bands: int = Field(default=40, ge=1, le=128)
    """Of `logmel`: number of mel bands."""

    @property
    def samples(self) -> int:
        return round(self.rate_hz * self.seconds)

    @property
    def frames(self) -> int:
        window, step = self.window
        return 1 + (self.samples - window) // step

    @property
    def window(self) -> tuple[int, int]:
        """Length and distance of the windows in samples."""
        return round(self.rate_hz * _WINDOW_S), round(self.rate_hz * _STEP_S)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.bands, self.frames) if self.form == "logmel" else (self.samples,)


def encode_audio(sound: NDArray[np.floating], rate_hz: int, form: AudioForm) -> NDArray[np.float32]:
    """Return the record of finite samples (n, channels) at any rate."""
    mono = np.zeros(len(sound))
    for channel in range(sound.shape[1]):
        mono += sound[:, channel]
    peak = max(float(np.abs(mono).max(initial=0.0)), _QUIET * sound.shape[1])
    steps = resampled(np.rint(mono / peak * FULL_SCALE).astype(np.int64), rate_hz, form)
    if form.form == "waveform":
        return (steps / FULL_SCALE).astype(np.float32)
    return logmel(steps, form).astype(np.float32)


def resampled(steps: Int64, rate_hz: int, form: AudioForm) -> Int64:
    """Return `form.samples` samples at its rate, within ±`FULL_SCALE`; padded with silence."""
    count = form.samples
    found = np.zeros(count, np.int64)
    if rate_hz == form.rate_hz:
        found[: len(steps)] = steps[:count]
        return found
    common = math.gcd(rate_hz, form.rate_hz)
    taps = _taps(form.rate_hz // common, rate_hz // common)
    length = taps.shape[1]
    last = (count - 1) * rate_hz // form.rate_hz
    padded = np.zeros(last + 1 + length, np.int64)
    kept = steps[: last + 1 + length // 2]
    padded[length // 2 - 1 :][: len(kept)] = kept
    for start in range(0, count, _BLOCK):
        at = np.arange(start, min(start + _BLOCK, count)) * (rate_hz // common)
        before, phase = np.divmod(at, form.rate_hz // common)
        near = padded[before[:, None] + np.arange(length)]
        found[start : start + _BLOCK] = np.rint(np.einsum("nk,nk->n", near, taps[phase]) / _STEPS)
    return np.asarray(np.clip(found, -FULL_SCALE, FULL_SCALE), np.int64)


@lru_cache(maxsize=4)
def _taps(up: int, down: int) -> Int64:
    """Return low-pass filters (up, length) for each phase of a change of rate by up/down."""
    wide = max(1.0, down / up)
    half = math.ceil(_CROSSINGS * wide)
    away = np.arange(1 - half, half + 1) - np.arange(up)[:, None] / up
    filters = np.sinc(away / wide) * np.cos(np.pi / 2 * np.clip(away / half, -1, 1)) ** 2
    whole: Int64 = np.rint(filters / filters.sum(axis=1, keepdims=True) * _STEPS).astype(np.int64)
    return whole


def logmel(steps: Int64, form: AudioForm) -> Int64:
    """Return levels (bands, frames) in 0..255 of samples: 0 is 50 dB below 255."""
    length, step = form.window
    waves, mel, thresholds = _filters(form.rate_hz, form.bands)
    starts = np.arange(form.frames) * step
    # Sums of integers below 2**40, then 2**50: exact in float64, in any order.
    real, imaginary = np.split(steps[starts[:, None] + np.arange(length)] @ waves, 2, axis=1)
    loudness = np.rint(np.sqrt(real * real + imaginary * imaginary) / _LOUDNESS_STEP)
    levels = np.searchsorted(thresholds, loudness @ mel, side="right")
    return np.ascontiguousarray(levels.T, np.int64)


@lru_cache(maxsize=4)
def _filters(rate_hz: int, bands: int) -> tuple[Float64, Float64, Float64]:
    """Return windowed waves (length, 2·bins), mel weights (bins, bands) and levels' thresholds.

    All are whole numbers."""
    length = round(rate_hz * _WINDOW_S)
    bins = (1 << (length - 1).bit_length()) // 2 + 1
    hann = np.sin(np.pi * (np.arange(length) + 0.5) / length) ** 2
    turns = np.pi * np.outer(np.arange(length), np.arange(bins)) / (bins - 1)
    waves = np.concatenate([np.cos(turns), np.sin(turns)], axis=1) * hann[:, None]
    ends = 700 * np.expm1(np.linspace(0, math.log1p(rate_hz / 1400), bands + 2))
    places = ends / (rate_hz / 2) * (bins - 1)
    low, middle, high = places[:-2], places[1:-1], places[2:]
    at = np.arange(bins)[:, None]
    mel = np.clip(np.minimum((at - low) / (middle - low), (high - at) / (high - middle)), 0, 1)
    nearest = np.rint(middle).astype(np.int64), np.arange(bands)
    mel[nearest] = np.maximum(mel[nearest], 1 / LEVELS)  # a narrow band may lie between two bins
    largest = FULL_SCALE * _STEPS * hann.sum() / 2 / _LOUDNESS_STEP * LEVELS * _HEADROOM
    decibels = _RANGE_DB * (np.arange(1, LEVELS + 1) / LEVELS - 1)
    thresholds = np.ceil(largest * 10 ** (decibels / 20))
    return np.rint(waves * _STEPS), np.rint(mel * LEVELS), thresholds
