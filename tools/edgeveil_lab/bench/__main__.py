"""`make bench`: figures for what runs often, each with the work it stands for. No assertions."""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from edgeveil.crypto.keys import CheckKey, ContentKey, MaskSeed, OpeningKey, SigningKey
from edgeveil.crypto.masking import PackedSum, Vector, add_mask, masked
from edgeveil.crypto.ring import Ring
from edgeveil.crypto.sealing import open_sealed, open_stanzas, seal, seal_stanzas
from edgeveil.crypto.stream import open_stream, seal_stream
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


def masking(
    count: int = 100_000, bits: int = 42
) -> tuple[Callable[[], object], Callable[[], object], Callable[[], object]]:
    """What a device, the proxy and the cloud do for one upload that is summed under masks."""
    ring, numbers = Ring(count, bits), np.arange(count)
    seed, check, total = MaskSeed.generate(), CheckKey.generate(), Vector.zeros(ring)
    packed = PackedSum(ring)
    upload = masked(numbers, seed, check, b"use", ring).to_bytes()
    return (
        lambda: masked(numbers, seed, check, b"use", ring).to_bytes(),
        lambda: add_mask(total, seed, b"use"),
        lambda: packed.add(upload),
    )


def cases() -> dict[str, tuple[Callable[[], object], float, str]]:
    data = bytes(1 << 20)
    blob = describe(data, 65024)
    frame = encode(part(blob, data, 0))
    opening, content = OpeningKey.generate(), ContentKey.generate()
    public = opening.public()
    sealed = seal(public, b"info", bytes(32))
    stream = seal_stream(content, b"c", data)
    recipients = [OpeningKey.generate().public() for _ in range(1999)] + [public]
    stanzas = seal_stanzas(content, recipients, b"info")
    signer = Signer("proxy", SigningKey.generate())
    records = np.random.default_rng(0).integers(-4096, 4096, (600, 833))
    sigma_squared = Fraction(1 << 52)
    at_device, at_proxy, at_cloud = masking()
    return {
        "discrete Gaussian, sigma 2^26": (
            lambda: discrete_gaussian(sigma_squared, (100_000,)),
            1e5,
            "samples",
        ),
        "discrete Laplace, scale 2^20": (
            lambda: discrete_laplace(Fraction(1 << 20), (100_000,)),
            1e5,
            "samples",
        ),
        "exact quadratic, 600 x 833": (lambda: exact_matmul(records.T, records), 600, "records"),
        "encode a 64 KiB part": (lambda: encode(part(blob, data, 0)), 65024 / 1e6, "MB"),
        "decode a 64 KiB part": (lambda: decode(frame, 65536), 65024 / 1e6, "MB"),
        "sign a note": (lambda: signer.note(Hello("0" * 16)), 1, "notes"),
        "seal 32 bytes to a key": (lambda: seal(public, b"info", bytes(32)), 1, "seals"),
        "open 32 bytes": (lambda: open_sealed(opening, b"info", sealed), 1, "opens"),
        "find one's own of 2,048 stanzas": (
            lambda: open_stanzas(opening, b"info", stanzas),
            1,
            "areas",
        ),
        "seal to 2,000 recipients": (
            lambda: seal_stanzas(content, recipients, b"info"),
            2000,
            "recipients",
        ),
        "seal a 1 MiB stream": (lambda: seal_stream(content, b"c", data), 1.048576, "MB"),
        "open a 1 MiB stream": (lambda: open_stream(content, b"c", stream), 1.048576, "MB"),
        "mask 100,000 numbers of 42 bits": (at_device, 1, "uploads"),
        "add up masks of those": (at_proxy, 1, "uploads"),
        "add up masked uploads of those": (at_cloud, 1, "uploads"),
    }


def main() -> None:
    for name, (work, units, unit) in cases().items():
        print(f"{name:32} {per_second(work, units):14,.0f} {unit}/s", flush=True)


if __name__ == "__main__":
    main()
