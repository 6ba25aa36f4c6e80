"""The one error of this package; a quiet "not for me" is `None`, never an error."""

from __future__ import annotations

from edgeveil.errors import EdgeVeilError


class CryptoError(EdgeVeilError):
    """A key file, key or ciphertext is not what it must be."""

    exit_code = 8
