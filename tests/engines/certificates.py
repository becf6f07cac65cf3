"""A certificate authority for a test server, and the certificates that it signs."""

import datetime as dt
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from tests.engines.servers import give_to_server

_VALID = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """A server's certificate and key as PEM text."""

    certificate: str
    key: str

    def write(self, directory: Path) -> tuple[Path, Path]:
        """Write certificate and key to files that only the server's user can read; return their paths."""
        files = directory / "certificate.pem", directory / "key.pem"
        for file, text in zip(files, (self.certificate, self.key), strict=True):
            file.touch(mode=0o600)
            file.write_text(text)
            give_to_server(file)
        return files


class Authority:
    """A new certificate authority, which only these tests trust."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("Authority of the tests")
        certificate = (
            _draft(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_SIGNS, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = certificate.public_bytes(Encoding.PEM).decode()
        """The authority's certificate as PEM text, for clients that trust the authority."""

    def certify(self, *names: str) -> ServerCertificate:
        """Issue a certificate for a server with these names or addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _draft(_named(names[0]), self._name, key, self._key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return ServerCertificate(
            certificate.public_bytes(Encoding.PEM).decode(),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        )


_SIGNS = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    crl_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


def _draft(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey | None = None,
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    signing = (issuer_key or key).public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing), critical=False)
    )


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
