"""The client's side of TLS: the system's roots or one CA, TLS 1.2 or newer, names checked."""

from __future__ import annotations

import ssl
from pathlib import Path

from edgeveil.errors import BrokerError


def client_context(
    ca_file: str | None, cert_file: str | None, key_file: str | None
) -> ssl.SSLContext:
    """A context that checks the broker's certificate and name, with our own certificate if given.

    Raises BrokerError when a file is missing or is not what it should be.
    """
    for path in (ca_file, cert_file, key_file):
        if path is not None and not Path(path).is_file():
            raise BrokerError("this TLS file does not exist", where=path, fix="check the path")
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        raise BrokerError(
            "no CA certificate can be read from this file",
            where=str(ca_file),
            fix="give a PEM file",
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert_file is not None:
        try:
            context.load_cert_chain(cert_file, key_file)
        except ssl.SSLError:
            raise BrokerError(
                "the client certificate and its key do not fit together",
                where=cert_file,
                fix="give the certificate's own unencrypted key as key_file",
            ) from None
    return context
