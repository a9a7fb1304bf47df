"""Names: where a uid belongs, what its member is called, and under which key a shard lies.

Everything follows from the SHA-256 of the uid. Its first eight bytes, read as a big-endian number, are the
uid's *fingerprint*; the top `n_bits` of the fingerprint are the *part* of the archive that the uid belongs
to. So the uids of a part are a contiguous range of fingerprints, and whatever is sorted by fingerprint is
sorted by part as well.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime

FINGERPRINT_BITS = 64
MOST_BITS = 16
INDEX_MEMBER = "_index.parquet"
SHARDS = "v1"

_COMPRESSED = ".zst"
_LONGEST = 200
_KEPT = 128
_PLAIN = re.compile(r"[A-Za-z0-9@+=,][A-Za-z0-9._@+=,-]{0,199}")
_UNSAFE = re.compile(rb"[^A-Za-z0-9._~@+=,-]")


def uid_bytes(uid: str) -> bytes:
    return uid.encode("utf-8", "surrogateescape")


def fingerprint(uid: str) -> int:
    return int.from_bytes(hashlib.sha256(uid_bytes(uid)).digest()[:8])


def part_of(fingerprint: int, n_bits: int) -> int:
    return fingerprint >> (FINGERPRINT_BITS - n_bits) if n_bits else 0


def span_of(part: int, n_bits: int) -> tuple[int, int]:
    """The first and the last fingerprint of a part."""
    width = FINGERPRINT_BITS - n_bits
    return part << width, ((part + 1) << width) - 1


def part_name(part: int, n_bits: int) -> str:
    """The part's bits in hexadecimal, as many digits as they need."""
    return f"{part:0{max(1, -(-n_bits // 4))}x}"


def file_name(uid: str) -> str:
    """A uid as the name of a file: no slash, never hidden, never `..`, and different for every uid.

    A long one keeps its beginning, and the SHA-256 of the whole behind `~~`.
    """
    if _PLAIN.fullmatch(uid):
        return uid
    escaped = _UNSAFE.sub(lambda sign: b"%%%02X" % sign[0][0], uid_bytes(uid)).decode("ascii")
    if not escaped or escaped[0] in "._~-":
        escaped = "%" + (f"{ord(escaped[0]):02X}{escaped[1:]}" if escaped else "")
    escaped = escaped.replace("~~", "%7E%7E")
    if len(escaped) <= _LONGEST:
        return escaped
    return f"{escaped[:_KEPT]}~~{hashlib.sha256(uid_bytes(uid)).hexdigest()}"


def member_name(uid: str, *, compressed: bool) -> str:
    """The file's name, and `.zst` behind it where that is what one finds inside."""
    name = file_name(uid)
    if name.endswith(_COMPRESSED):  # or else `a.zst` as it is and `a` compressed would share a name
        name = f"{name[: -len(_COMPRESSED)]}%2Ezst"
    return name + _COMPRESSED if compressed else name


def part_in(key: str) -> str:
    """The part that a shard belongs to."""
    return key.split("/")[2]


def shards_until(high: datetime) -> str:
    """The folder of the shards of windows that end on this day."""
    return f"{SHARDS}/{high:%Y-%m-%d}"


def shard_key(high: datetime, part: str, number: int, sha256: str) -> str:
    return f"{shards_until(high)}/{part}/{number:05}-{sha256[:16]}.zip"
