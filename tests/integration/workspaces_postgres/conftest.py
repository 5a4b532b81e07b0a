from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.workspaces.worlds import postgres_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Server


@pytest.fixture
def database(shared_postgres: Server) -> Iterator[str]:
    """A database with our tables, for one test."""
    with postgres_database(shared_postgres) as url:
        yield url


@pytest.fixture
def another_database(shared_postgres: Server) -> Iterator[str]:
    """Another one, of the same server."""
    with postgres_database(shared_postgres) as url:
        yield url
