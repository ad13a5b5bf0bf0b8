"""Patterns of media types and SHA-256 digests. Both are sent in headers, so other characters must not match."""

import re
from typing import Final

MEDIA_TYPE: Final = re.compile(r"[\w!#$&^.+-]{1,64}/[\w!#$&^.+-]{1,64}(; ?[\w-]{1,32}=[\w.+-]{1,64}){0,4}\Z", re.ASCII)
"""A media type as in RFC 6838, with up to four parameters."""
SHA256: Final = re.compile(r"[0-9a-f]{64}\Z")
