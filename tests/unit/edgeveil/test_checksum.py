"""Parts carry the CRC-32 that every implementation of zlib knows."""

import zlib

from hypothesis import given
from hypothesis import strategies as st

from edgeveil.checksum import crc32


def test_checksum_is_the_catalogues():
    assert crc32(b"123456789") == 0xCBF43926


@given(st.binary(max_size=4096))
def test_checksum_is_that_of_zlib(data):
    assert crc32(data) == zlib.crc32(data) == crc32(memoryview(data))
