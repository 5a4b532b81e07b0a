from __future__ import annotations

from lapse.requests.api.kinds import CHUNK_METADATA
from lapse.requests.schedules.retention import is_usable


def test_a_part_of_an_artifact_is_none_and_has_no_status_to_look_at() -> None:
    """A keeper may own chunks, of which only the metadata is known, before their checkpoint is ready."""
    chunk = CHUNK_METADATA.convert({"metadata": {"name": "mcp-1-0"}})
    assert not is_usable(CHUNK_METADATA, chunk)
