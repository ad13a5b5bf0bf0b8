"""How a file's media type and digest are written: both are sent out as headers, so nothing else may be in them."""

import re
from typing import Final

MEDIA_TYPE: Final = re.compile(r"[\w!#$&^.+-]{1,64}/[\w!#$&^.+-]{1,64}(; ?[\w-]{1,32}=[\w.+-]{1,64}){0,4}\Z", re.ASCII)
"""As RFC 6838 names types, with a few parameters."""
SHA256: Final = re.compile(r"[0-9a-f]{64}\Z")
