from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_artifacts import write_artifact

from aitune.artifact.reading import Artifact
from aitune.artifact.signing import is_signed_by, public_bytes_of, sign
from aitune.exceptions import AITuneUserInputError, ArtifactError

ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")

SECRET = bytes(range(32))


def key() -> Any:
    return ed25519.Ed25519PrivateKey.from_private_bytes(SECRET)


@pytest.fixture
def pem(tmp_path: Path) -> tuple[Path, Path]:
    encoding = serialization.Encoding.PEM
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    private.write_bytes(key().private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    public.write_bytes(key().public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


def test_keys_in_every_form_are_the_same_key(tmp_path: Path, pem: tuple[Path, Path]) -> None:
    public = public_bytes_of(SECRET)
    signature = sign(SECRET, b"manifest")
    for private_form in (SECRET, key(), pem[0], str(pem[0])):
        assert sign(private_form, b"manifest") == signature
    for public_form in (public, key().public_key(), pem[1], str(pem[1])):
        assert is_signed_by(public_form, signature, b"manifest")
        assert not is_signed_by(public_form, signature, b"manifesto")


def test_a_signature_is_for_manifests_alone() -> None:
    raw = key().sign(b"manifest")
    assert not is_signed_by(public_bytes_of(SECRET), raw, b"manifest")


def test_a_signed_file_opens_with_its_key_alone(tmp_path: Path) -> None:
    path = write_artifact(tmp_path / "x.ait", b"member", sign=SECRET)
    with Artifact(path, public_bytes_of(SECRET)) as artifact:
        assert artifact.seal.signature is not None
    Artifact(path).close()
    other = bytes(32)
    with pytest.raises(ArtifactError, match=r"not signed with the key given as verify_key=.*" + key_digits()):
        Artifact(path, public_bytes_of(other))


def key_digits() -> str:
    return public_bytes_of(SECRET).hex()


def test_an_unsigned_file_is_refused_where_a_signature_is_asked_for(tmp_path: Path) -> None:
    path = write_artifact(tmp_path / "x.ait", b"member")
    with pytest.raises(ArtifactError, match="it is not signed"):
        Artifact(path, public_bytes_of(SECRET))


def test_a_signature_of_another_file_is_refused(tmp_path: Path) -> None:
    from fuzzing import entries_of, pack

    one = write_artifact(tmp_path / "one.ait", b"member", sign=SECRET)
    two = write_artifact(tmp_path / "two.ait", b"other!", sign=SECRET)
    entries = [(name, dict(entries_of(two))[name] if name == "seal.json" else c) for name, c in entries_of(one)]
    one.write_bytes(pack(entries))
    with pytest.raises(ArtifactError, match="manifest was altered"):
        Artifact(one, public_bytes_of(SECRET))


def test_a_resealed_file_is_refused_with_the_key(tmp_path: Path) -> None:
    from fuzzing import entries_of, pack, resealed

    path = write_artifact(tmp_path / "x.ait", b"member", sign=SECRET)
    entries = [(n, c.replace(b'"encoder"', b'"decoder"') if n == "manifest.json" else c) for n, c in entries_of(path)]
    path.write_bytes(pack(resealed(entries)))
    Artifact(path).close()
    with pytest.raises(ArtifactError, match="it is not signed"):
        Artifact(path, public_bytes_of(SECRET))


@pytest.mark.parametrize("wrong", [b"short", 3, "/nowhere/key.pem", None])
def test_what_is_no_key_is_an_error_of_the_user(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(AITuneUserInputError, match="expected an Ed25519"):
        sign(wrong, b"manifest")


def test_a_key_of_another_kind(tmp_path: Path, pem: tuple[Path, Path]) -> None:
    with pytest.raises(AITuneUserInputError, match="holds no private key"):
        sign(pem[1], b"manifest")
    x25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.x25519")
    other = tmp_path / "x.pem"
    other.write_bytes(
        x25519.X25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    with pytest.raises(AITuneUserInputError, match="X25519PrivateKey, expected an Ed25519"):
        sign(other, b"manifest")
