"""Migrations of the tables on PostgreSQL: new ones made, older ones brought up to date.

All missing steps are one transaction: it leaves the newest tables or changes nothing. Two processes that do this at the
same moment wait for each other. Alembic keeps the order and the record; it comes with SQLAlchemy, which is given a
connection of our driver and never loads one of its own: a second SQLite library in this process would break the locks
of the first.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from lapse.db.postgres import migrations
from lapse.db.postgres.pool import explain, explain_unreachable
from lapse.db.postgres.url import PostgresURL

if TYPE_CHECKING:
    from sqlalchemy import Connection

_LOCK: Final = 0x4C61707365  # "Lapse"
_CONNECT_SECONDS: Final = 10


def migrate(url: str) -> None:
    """Bring the tables of the database up to date; blocks. Raises `DatabaseError`."""
    parsed = PostgresURL.parse(url)
    try:
        connection = psycopg.connect(parsed.conninfo, connect_timeout=_CONNECT_SECONDS)
    except psycopg.Error as error:
        raise explain_unreachable(error, parsed) from error
    with connection:
        engine = create_engine("postgresql+psycopg://", creator=lambda: connection, poolclass=NullPool)
        try:
            with engine.begin() as bound:
                _upgrade(bound)
        except DBAPIError as error:
            cause = error.orig if isinstance(error.orig, psycopg.Error) else psycopg.Error(str(error))
            raise explain(cause, parsed) from cause
        except psycopg.Error as error:
            raise explain(error, parsed) from error


def _upgrade(connection: Connection) -> None:
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
