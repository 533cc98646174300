"""A certificate authority for one federation: TLS certificates, and a key that authenticates each client."""

import datetime
import hashlib
import inspect
import ipaddress
from pathlib import Path

from partita.errors import FederationError, MissingExtraError
from partita.io import atomic

__all__ = [
    "AUTHORITY",
    "PRIVATE",
    "SERVER",
    "SERVER_KEY",
    "SERVER_PUBLIC",
    "ends",
    "fingerprint",
    "make_authority",
    "make_key",
    "private_key",
    "public_key",
    "renew",
    "warnings",
    "write_public",
]

try:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise MissingExtraError("cryptography, which makes certificates,", "flower") from None

_YEARS, _AUTHORITY_YEARS = 2, 10
"""The validity in years of the server's certificate, and of the authority's."""
_BEFORE = datetime.timedelta(days=1)
"""How long before it is made a certificate is valid, for slow clocks: their error is reported later."""
_WARNED = datetime.timedelta(days=31)
"""How long before its end a certificate is warned of."""
_LARGEST = 2000
"""The most bytes of a public key's file."""
PRIVATE = 0o600
"""File mode of private keys."""
_AUTHORITY_KEY = "ca.key"
AUTHORITY = "ca.crt"
"""The authority's certificate; clients get it."""
SERVER = "server.pem"
"""The server's certificate."""
SERVER_KEY = "server.key"
"""The server's private key."""
SERVER_PUBLIC = "server.pub"
"""The server's public key; clients get it."""


def make_authority(folder: Path, host: str) -> None:
    """Writes a new authority, and key and certificate of a server at this host."""
    authority = ec.generate_private_key(ec.SECP384R1())
    issuer = _named(_ISSUER)
    root = _certificate(issuer, authority.public_key(), issuer, authority, _AUTHORITY_YEARS, ca=True)
    _write(folder / AUTHORITY, root.sign(authority, hashes.SHA384()))
    _secret(folder / _AUTHORITY_KEY, authority)
    server = ec.generate_private_key(ec.SECP384R1())
    _secret(folder / SERVER_KEY, server)
    write_public(folder / SERVER_PUBLIC, server.public_key())
    renew(folder, host)


def renew(folder: Path, host: str) -> None:
    """Writes a new certificate for the server's key, by the authority that clients trust: they need nothing new."""
    authority, server = (private_key(folder / file) for file in (_AUTHORITY_KEY, SERVER_KEY))
    leaf = (
        _certificate(_named(host), server.public_key(), _named(_ISSUER), authority, _YEARS, ca=False)
        .add_extension(x509.SubjectAlternativeName(_names(host)), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )
    _write(folder / SERVER, leaf.sign(authority, hashes.SHA384()))


def ends(folder: Path) -> dict[str, datetime.datetime]:
    """When each certificate in a folder ends, of a server or of a client."""
    files = [folder / file for file in (AUTHORITY, SERVER) if (folder / file).exists()]
    return {path.name: _certificate_in(path).not_valid_after_utc for path in files}


def warnings(folder: Path, now: datetime.datetime | None = None) -> list[str]:
    """Sentences on certificates that end within a month, or have ended."""
    now = now or datetime.datetime.now(datetime.UTC)
    return [
        f"The certificate {folder / file} {'has ended' if end <= now else 'ends'} on {end:%Y-%m-%d}: {_REMEDIES[file]}."
        for file, end in ends(folder).items()
        if end - now < _WARNED
    ]


_REMEDIES = {
    SERVER: "renew it with `partita federation certificates FOLDER --renew`; clients need nothing new",
    AUTHORITY: "make a new one with `partita federation certificates FOLDER --renew-authority` at the server, and give "
    "every client its folder again",
}


def make_key(private: Path, public: Path) -> None:
    """Writes a client's private key, and its public key, which is all that the server needs."""
    key = ec.generate_private_key(ec.SECP384R1())
    _secret(private, key, serialization.PrivateFormat.OpenSSH)
    write_public(public, key.public_key())


def public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """The public key in a file; anything else raises an `InputError`."""
    try:
        with path.open("rb") as file:
            key = serialization.load_ssh_public_key(file.read(_LARGEST))
    except FileNotFoundError:
        raise FederationError(f"There is no file {path}: ask the client for its public key.") from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FederationError(f"{path} is not a public key of a client: make one there with `partita federation key`.")
    return key


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """A hash of a public key, to be compared by voice."""
    digest = hashlib.sha256(
        key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return " ".join(digest.hexdigest()[place : place + 4] for place in range(0, 32, 4))


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The private key in a file, of a client or of the server; anything else raises an `InputError`."""
    try:
        text = path.read_bytes()
        ssh = b"OPENSSH" in text
        key = (serialization.load_ssh_private_key if ssh else serialization.load_pem_private_key)(text, None)
    except FileNotFoundError:
        raise FederationError(f"There is no {path}, which is a private key: use the folder that has it.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FederationError(f"{path} is not a private key of this federation: use the folder that has it.")
    return key


def _certificate_in(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise FederationError(f"{path} is not a certificate: use the file that the federation's server has.") from None


_ISSUER = "partita federation"


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    authority: ec.EllipticCurvePrivateKey,
    years: int,
    ca: bool,
) -> x509.CertificateBuilder:
    """The fields and extensions common to all certificates.

    All of them are required by the strict verification of Python 3.13 and later.
    """
    now = datetime.datetime.now(datetime.UTC)
    uses = ("key_cert_sign", "crl_sign") if ca else ("digital_signature",)
    usage = x509.KeyUsage(**{use: use in uses for use in inspect.signature(x509.KeyUsage).parameters})
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + datetime.timedelta(days=365 * years))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
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


def _write(path: Path, signed: x509.Certificate) -> None:
    atomic.write_text(path, signed.public_bytes(serialization.Encoding.PEM).decode())


def write_public(path: Path, key: ec.EllipticCurvePublicKey) -> None:
    """Writes a public key, and nothing else."""
    public = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    atomic.write_text(path, public.decode() + "\n")
