"""A certificate authority that no machine trusts."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme

__all__ = ["HOST", "Authority"]

HOST = "index.example"
"""A host name that DNS does not have; only the proxies of tests resolve it."""


class Authority:
    """An authority with certificates for a server and a client."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        server = self._authority.issue_cert("127.0.0.1", HOST)
        client = self._authority.issue_cert("client@index.example")
        self.bundle = str(folder / "authority.pem")
        self._authority.cert_pem.write_to_path(self.bundle)
        self.client = str(folder / "client.pem")
        client.private_key_and_cert_chain_pem.write_to_path(self.client)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.configure_cert(self.context)

    def ask_clients(self) -> ssl.SSLContext:
        """Return the context of a server that requires certificates of its clients."""
        self._authority.configure_trust(self.context)
        self.context.verify_mode = ssl.CERT_REQUIRED
        return self.context
