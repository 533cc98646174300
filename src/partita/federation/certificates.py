"""A certificate authority for one federation: TLS certificates, and a key that authenticates each client."""

import datetime
import inspect
import ipaddress
from pathlib import Path

from partita.errors import MissingExtraError
from partita.io import atomic

__all__ = ["PRIVATE", "make_authority", "make_key"]

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise MissingExtraError("cryptography, which makes certificates,", "flower") from None

_YEARS = 2
"""The validity of certificates in years."""
PRIVATE = 0o600
"""File mode of private keys."""


def make_authority(folder: Path, host: str) -> None:
    """Writes ca.crt, server.pem and server.key for a server at this host."""
    authority = ec.generate_private_key(ec.SECP384R1())
    server = ec.generate_private_key(ec.SECP384R1())
    names = ("partita federation", host)
    issuer, subject = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in names)
    root = _certificate(issuer, authority, issuer, authority)
    leaf = (
        _certificate(subject, server, issuer, authority)
        .add_extension(x509.SubjectAlternativeName(_names(host)), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )
    for file, builder in (("ca.crt", root), ("server.pem", leaf)):
        signed = builder.sign(authority, hashes.SHA384())
        atomic.write_text(folder / file, signed.public_bytes(serialization.Encoding.PEM).decode())
    _secret(folder / "server.key", server)


def make_key(folder: Path, name: str) -> None:
    """Writes a client's private key and, next to it, the public key."""
    key = ec.generate_private_key(ec.SECP384R1())
    _secret(folder / name, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    atomic.write_text(folder / f"{name}.pub", public.decode() + "\n")


def _certificate(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, issuer: x509.Name, authority: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    """The fields and extensions common to all certificates.

    All of them are required by the strict verification of Python 3.13 and later.
    """
    now, ca = datetime.datetime.now(datetime.UTC), key is authority
    uses = ("key_cert_sign", "crl_sign") if ca else ("digital_signature",)
    usage = x509.KeyUsage(**{use: use in uses for use in inspect.signature(x509.KeyUsage).parameters})
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(signer, critical=False)
    )


def _names(host: str) -> list[x509.GeneralName]:
    """The server's alternative names: its host and localhost."""
    found: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return [*found, x509.DNSName(host)] if host != "localhost" else found
    return found if address.is_loopback or address.is_unspecified else [*found, x509.IPAddress(address)]


def _secret(
    path: Path,
    key: ec.EllipticCurvePrivateKey,
    form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> None:
    """Writes a private key that only its owner may read."""
    text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
    atomic.write_text(path, text, PRIVATE)
