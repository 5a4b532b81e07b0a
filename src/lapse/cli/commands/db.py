"""``lapse db``: the tables on PostgreSQL, and the way back from there.

A store in a file makes its own tables when it is opened. A state folder joins a database by itself, with the first
`lapse up` that is given one; see `lapse.app.record`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyclopts import App, Parameter

from lapse.cli.flags import StateFlags, WorkspaceStoreFlags
from lapse.cli.output import ExitCode, Output, OutputOption, print_result
from lapse.cli.usage import commands_of

if TYPE_CHECKING:
    from lapse.cli.context import Context

app = App(
    "db", help="Make the tables of Lapse on PostgreSQL; leave a database.", default_parameter=Parameter(negative=())
)
_command = commands_of(app)


@_command("lapse db init --database-url postgresql://lapse@db.example.org/lapse")
def init(*, flags: WorkspaceStoreFlags = WorkspaceStoreFlags(), output: OutputOption = Output.TABLE) -> int:
    """Make the tables of Lapse, or bring them up to date.

    Either all tables are made or none; tables that exist stay.
    """
    from lapse.settings import show_value

    settings = flags.load_and_warn().settings
    url = settings.database_url
    shown = show_value(url or settings.workspaces_url)
    if url:
        _migrate(url)
        said = f"The tables in {shown} are up to date."
    else:
        said = f"{shown} is a file, which needs no preparation: Lapse makes it when it is first used."
    print_result(output, {"url": shown, "migrated": bool(url)}, said)
    return ExitCode.DONE


@_command("lapse db leave", "lapse db leave --state-dir /var/lib/lapse")
def leave(*, flags: StateFlags = StateFlags(), output: OutputOption = Output.TABLE) -> int:
    """Let a state folder have its record to itself again, after database_url was taken out of the settings.

    Everything is frozen in it: what is frozen in the database, and what was
    spent there, is not known here. Look at that, then run lapse resume all.
    Nothing in the database is changed.
    """
    from lapse.app.record import leave_database
    from lapse.cli.context import in_context, who
    from lapse.core.clock import UnixNs

    async def work(context: Context) -> str | None:
        return await leave_database(context.embedded, by=who(), now=UnixNs(context.machine.wall_ns()))

    place = in_context(flags, work)
    said = f"Its record was in {place}. It has one of its own now, and all is frozen; go on with lapse resume all."
    if place is None:
        said = "The record is in the state folder already."
    print_result(output, {"left": place}, said)
    return ExitCode.DONE


def _migrate(url: str) -> None:
    from lapse.db.errors import DatabaseError
    from lapse.db.postgres.migration import migrate
    from lapse.workspaces.store.sql import translate

    try:
        migrate(url)
    except DatabaseError as error:
        raise translate(error) from error.__cause__
