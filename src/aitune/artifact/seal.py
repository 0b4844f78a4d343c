"""The seal of an artifact: the hash of its manifest, and the signature if it has one.

The manifest holds the hash of every member, so the seal stands for the whole file.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from aitune.artifact.records import Record, Sha256
from aitune.artifact.signing import KeySource, is_signed_by, public_bytes_of, sign
from aitune.exceptions import ArtifactError

LARGEST_SEAL = 4096


class SignatureRecord(Record, frozen=True, kw_only=True):
    """A signature of the manifest, with the public half of the key that made it, both in hexadecimal digits."""

    algorithm: Literal["ed25519"]
    public_key: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    value: Annotated[str, Meta(pattern=r"^[0-9a-f]{128}\Z")]


class Seal(Record, frozen=True, kw_only=True):
    """Hash and signature of the manifest."""

    manifest_sha256: Sha256
    signature: SignatureRecord | None = None


_decoder = msgspec.json.Decoder(Seal)


def make_seal(manifest: bytes, private_key: KeySource | None = None) -> bytes:
    """Make the seal of a manifest.

    Args:
        manifest: The manifest's bytes.
        private_key: Key to sign with; ``None`` leaves the file unsigned.
    """
    signature = None
    if private_key is not None:
        signature = SignatureRecord(
            algorithm="ed25519",
            public_key=public_bytes_of(private_key).hex(),
            value=sign(private_key, manifest).hex(),
        )
    return msgspec.json.encode(Seal(manifest_sha256=hashlib.sha256(manifest).hexdigest(), signature=signature))


def check_seal(text: bytes, manifest: bytes, public_key: KeySource | None = None) -> Seal:
    """Check that a seal belongs to a manifest, and who signed it.

    Args:
        text: The seal's bytes.
        manifest: The manifest's bytes.
        public_key: Key that must have signed; ``None`` asks for no signature and checks none.

    Raises:
        ArtifactError: It does not belong to it, or was not signed with that key.
    """
    try:
        seal = _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactError(f"its seal cannot be read: {error}") from error
    if hashlib.sha256(manifest).hexdigest() != seal.manifest_sha256:
        raise ArtifactError("its manifest was altered: the hash in its seal is another one")
    if public_key is None:
        return seal
    if seal.signature is None:
        raise ArtifactError("it is not signed, and verify_key= asks for a signature; save it with sign=")
    if not is_signed_by(public_key, bytes.fromhex(seal.signature.value), manifest):
        raise ArtifactError(
            f"it is not signed with the key given as verify_key=; it says that it was signed with the key "
            f"{seal.signature.public_key}"
        )
    return seal
