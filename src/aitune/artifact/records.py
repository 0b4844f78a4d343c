"""What the records of a manifest are made of: frozen structs that know no fields but their own, and checked values."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

_LARGEST = 1 << 62

Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Count = Annotated[int, Meta(ge=0, le=_LARGEST)]
Size = Annotated[int, Meta(ge=0, le=_LARGEST)]
Name = Annotated[str, Meta(min_length=1, max_length=500)]
Text = Annotated[str, Meta(max_length=100_000)]


class Record(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every record: immutable; an unknown field is an error, because its meaning would be lost."""
