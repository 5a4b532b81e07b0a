from __future__ import annotations

import pytest

from tests.conformance.activity import cases  # noqa: F401 - fills the book
from tests.conformance.activity.book import BOOK
from tests.conformance.activity.worlds import InProcessWorld


@pytest.mark.parametrize("name", BOOK)
async def test_activity_of_one_process(name: str) -> None:
    await BOOK[name](InProcessWorld())
