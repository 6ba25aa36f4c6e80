"""`make bench`: throughput of frequent operations, each labelled with its work; no assertions."""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from edgeveil.crypto.chunked import open_chunked, seal_chunked
from edgeveil.crypto.keys import CheckKey, ContentKey, MaskSeed, OpeningKey, SigningKey
from edgeveil.crypto.masking import PackedSum, Vector, add_mask, masked
from edgeveil.crypto.ring import Ring
from edgeveil.crypto.sealing import open_sealed, open_stanzas, seal, seal_stanzas
from edgeveil.privacy.grid import exact_matmul
from edgeveil.privacy.sampler import discrete_gaussian, discrete_laplace
from edgeveil.protocol.messages import Hello, Signer, decode, encode
from edgeveil.protocol.transfer import describe, part


def per_second(work: Callable[[], object], units: float, least_s: float = 0.5) -> float:
    work()
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < least_s:
        work()
        count += 1
    return units * count / elapsed


def masking() -> tuple[Callable[[], object], Callable[[], object], Callable[[], object]]:
    """Return one masked upload's work of a device, the proxy and the cloud."""
    ring, numbers = Ring(100_000, 42), np.arange(100_000)
    seed, check, total = MaskSeed.generate(), CheckKey.generate(), Vector.zeros(ring)
    packed = PackedSum(ring)
    upload = masked(numbers, seed, check, b"use", ring).to_bytes()
    return (
        lambda: masked(numbers, seed, check, b"use", ring).to_bytes(),
        lambda: add_mask(total, seed, b"use"),
        lambda: packed.add(upload),
    )


def cases() -> list[tuple[Any, ...]]:
    data = bytes(1 << 20)
    blob = describe(data, 65024)
    frame = encode(part(blob, data, 0))
    opening, content = OpeningKey.generate(), ContentKey.generate()
    public = opening.public()
    sealed = seal(public, b"info", bytes(32))
    stream = seal_chunked(content, b"c", data)
    keys = [OpeningKey.generate().public() for _ in range(1999)] + [public]
    stanzas = seal_stanzas(content, keys, b"info")
    signer = Signer("proxy", SigningKey.generate())
    records = np.random.default_rng(0).integers(-4096, 4096, (600, 833))
    variance, scale = Fraction(1 << 52), Fraction(1 << 20)
    at_device, at_proxy, at_cloud = masking()
    return [
        ("discrete Gaussian, sigma 2^26", 1e5, "samples", discrete_gaussian, variance, (100_000,)),
        ("discrete Laplace, scale 2^20", 1e5, "samples", discrete_laplace, scale, (100_000,)),
        ("exact quadratic, 600 x 833", 600, "records", exact_matmul, records.T, records),
        ("encode a 64 KiB part", 65024 / 1e6, "MB", lambda: encode(part(blob, data, 0))),
        ("decode a 64 KiB part", 65024 / 1e6, "MB", decode, frame, 65536),
        ("sign a note", 1, "notes", lambda: signer.note(Hello("0" * 16))),
        ("seal 32 bytes to a key", 1, "seals", seal, public, b"info", bytes(32)),
        ("open 32 bytes", 1, "opens", open_sealed, opening, b"info", sealed),
        ("find one's own of 2,048 stanzas", 1, "areas", open_stanzas, opening, b"info", stanzas),
        ("seal to 2,000 recipients", 2000, "recipients", seal_stanzas, content, keys, b"info"),
        ("seal a 1 MiB stream", 1.048576, "MB", seal_chunked, content, b"c", data),
        ("open a 1 MiB stream", 1.048576, "MB", open_chunked, content, b"c", stream),
        ("mask 100,000 numbers of 42 bits", 1, "uploads", at_device),
        ("add up masks of those", 1, "uploads", at_proxy),
        ("add up masked uploads of those", 1, "uploads", at_cloud),
    ]


def main() -> None:
    for name, units, unit, work, *given in cases():
        figure = per_second(partial(work, *given), units)
        print(f"{name:32} {figure:14,.0f} {unit}/s", flush=True)


if __name__ == "__main__":
    main()
