from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@pytest.hookimpl(tryfirst=True)
def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run everything here on both loops: uvloop is what `lapse` runs on, and asyncio what others may."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
