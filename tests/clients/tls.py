"""How does a client that insists on TLS reach a server without? A forwarder with its own certificate."""

from __future__ import annotations

import datetime
import ipaddress
import select
import socket
import ssl
import threading
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A key and a self-signed certificate for 127.0.0.1, good for a day; returns the paths of certificate and key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    certificate_path, key_path = folder / "certificate.pem", folder / "key.pem"
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return certificate_path, key_path


class Forwarder:
    """Takes TLS connections on a free port of 127.0.0.1 and passes them on, in threads that end with the process.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, host: str, port: int, certificate: Path, key: Path) -> None:
        self._target = (host, port)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with (
                self._context.wrap_socket(client, server_side=True) as near,
                socket.create_connection(self._target) as far,
            ):
                self._pump(near, far)
        except OSError:
            client.close()  # one side hung up

    @staticmethod
    def _pump(near: ssl.SSLSocket, far: socket.socket) -> None:
        other = {near: far, far: near}
        while True:
            ready = [near] if near.pending() else select.select([near, far], [], [])[0]
            for one in ready:
                if not (data := one.recv(65536)):
                    return
                other[one].sendall(data)
