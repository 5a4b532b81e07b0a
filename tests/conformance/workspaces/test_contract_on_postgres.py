"""The whole contract on a real PostgreSQL server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.workspaces.cases import CASES
from tests.conformance.workspaces.worlds import postgres_database, postgres_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Server


@pytest.fixture(scope="module")
def database(shared_postgres: Server) -> Iterator[str]:
    with postgres_database(shared_postgres) as url:
        yield url


@pytest.mark.parametrize("name", CASES)
async def test_the_postgres_store_keeps_the_contract(name: str, database: str) -> None:
    async with postgres_world(database) as world:
        await CASES[name](world)
