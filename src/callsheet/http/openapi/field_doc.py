"""What a field means, with an example; and the ids that examples share."""

from typing import Any, NamedTuple


class FieldDoc(NamedTuple):
    """A meaning and an example."""

    meaning: str
    example: Any


JOB_ID = "01968c2e-7f4a-7c31-9d52-6b1f0a4e8c77"
STAGE_ID = "01968c2e-7f4a-7c31-8a10-2f6e9b3d5c01"
TASK_ID = "01968c2e-7f4a-7c31-b3c8-51d7e0a9f246"
FILE_ID = "01968c2e-7f4a-7c31-a7e4-0c93d8b1562f"
KEY_ID = "01968c2e-5d10-7b02-8f6a-9e2d4c7b1a35"
AT = "2026-03-14T09:26:53.589Z"
