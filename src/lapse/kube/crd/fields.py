"""Types of fields that many kinds have, with the bounds that an API server is told.

The bounds in ``Meta(extra_json_schema=...)`` are for the schema only: whoever reads an object takes what is stored.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

# Not `format: date-time`: with that, an API server takes a list for a text, and nobody could read the object again.
_DATE: Final = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME_OF_DAY: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?"
TIME_PATTERN: Final = f"^{_DATE}T{_TIME_OF_DAY}(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
"""A moment in RFC 3339."""

Name = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 253})]
Namespace = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 63})]
Uid = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 128})]
ApiVersion = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 317})]
KindName = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 63})]
Time = Annotated[str, Meta(extra_json_schema={"pattern": TIME_PATTERN})]
Count = Annotated[int, Meta(extra_json_schema={"minimum": 0})]
