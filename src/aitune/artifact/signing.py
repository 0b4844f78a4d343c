"""Ed25519 signatures (RFC 8032) through the package ``cryptography``, which is an extra."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Union

from aitune.exceptions import AITuneEnvironmentError, AITuneUserInputError

_RAW_SIZE = 32
_PURPOSE = b"aitune artifact manifest\0"

KeySource = Union[bytes, str, "os.PathLike[str]", Any]
"""A key object of ``cryptography``, 32 raw bytes, or the path of a PEM file."""


def public_bytes_of(private_key: KeySource) -> bytes:
    """Return the public key that belongs to a private one, 32 bytes.

    Args:
        private_key: The private key.

    Raises:
        AITuneUserInputError: It is no Ed25519 key.
        AITuneEnvironmentError: ``cryptography`` is not installed.
    """
    public: bytes = _private_key(private_key).public_key().public_bytes_raw()
    return public


def sign(private_key: KeySource, manifest: bytes) -> bytes:
    """Sign a manifest.

    Args:
        private_key: The private key.
        manifest: The manifest's bytes.

    Returns:
        The signature, 64 bytes.

    Raises:
        AITuneUserInputError: It is no Ed25519 key.
        AITuneEnvironmentError: ``cryptography`` is not installed.
    """
    signature: bytes = _private_key(private_key).sign(_PURPOSE + manifest)
    return signature


def is_signed_by(public_key: KeySource, signature: bytes, manifest: bytes) -> bool:
    """Say whether a signature of a manifest was made with the private half of a key.

    Args:
        public_key: The public key.
        signature: The signature.
        manifest: The manifest's bytes.

    Raises:
        AITuneUserInputError: It is no Ed25519 key.
        AITuneEnvironmentError: ``cryptography`` is not installed.
    """
    key = _public_key(public_key)
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, _PURPOSE + manifest)
    except InvalidSignature:
        return False
    return True


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise AITuneEnvironmentError(
            'signing needs the package cryptography; run: pip install "aitune-open[sign]"'
        ) from error
    return ed25519


def _private_key(source: KeySource) -> Any:
    ed25519 = _ed25519()
    if isinstance(source, ed25519.Ed25519PrivateKey):
        return source
    if isinstance(source, bytes) and len(source) == _RAW_SIZE:
        return ed25519.Ed25519PrivateKey.from_private_bytes(source)
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = _from_pem(source, lambda text: load_pem_private_key(text, password=None), "private")
    return _require(key, ed25519.Ed25519PrivateKey, "private")


def _public_key(source: KeySource) -> Any:
    ed25519 = _ed25519()
    if isinstance(source, ed25519.Ed25519PublicKey):
        return source
    if isinstance(source, bytes) and len(source) == _RAW_SIZE:
        return ed25519.Ed25519PublicKey.from_public_bytes(source)
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    return _require(_from_pem(source, load_pem_public_key, "public"), ed25519.Ed25519PublicKey, "public")


def _from_pem(source: KeySource, load: Any, kind: str) -> Any:
    expected = f"expected an Ed25519 {kind} key: an object of cryptography, 32 raw bytes, or the path of a PEM file"
    if not isinstance(source, str | os.PathLike):
        # The value is not shown: it may be a secret.
        raise AITuneUserInputError(f"got a {type(source).__name__} as a key; {expected}")
    try:
        return load(Path(source).read_bytes())
    except OSError as error:
        raise AITuneUserInputError(f"the key file {os.fspath(source)} cannot be read: {error}; {expected}") from error
    except (ValueError, TypeError) as error:
        raise AITuneUserInputError(f"{os.fspath(source)} holds no {kind} key that can be read; {expected}") from error


def _require(key: Any, kind: Any, name: str) -> Any:
    if not isinstance(key, kind):
        raise AITuneUserInputError(f"the key is a {type(key).__name__}, expected an Ed25519 {name} key")
    return key
