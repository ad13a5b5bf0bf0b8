"""The OpenAPI 3.1 document of the native API.

`python -m callsheet.http.openapi.native_document` prints it.
"""

import json
import sys
from typing import Any

from callsheet.http.openapi.document_builder import build_document
from callsheet.http.routes.table import ROUTES


def document() -> dict[str, Any]:
    """Return the OpenAPI document of all routes."""
    return build_document(ROUTES)


if __name__ == "__main__":
    json.dump(document(), sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
