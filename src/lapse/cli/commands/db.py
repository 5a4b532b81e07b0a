"""``lapse db``: the tables on PostgreSQL. A store in a file makes its own when it is opened."""

from __future__ import annotations

from cyclopts import App, Parameter

from lapse.cli.flags import WorkspaceFlags
from lapse.cli.output import ExitCode, Output, OutputOption, print_result
from lapse.cli.usage import commands_of

app = App("db", help="Make the tables of Lapse on PostgreSQL.", default_parameter=Parameter(negative=()))
_command = commands_of(app)


@_command("lapse db init --database-url postgresql://lapse@db.example.org/lapse")
def init(*, flags: WorkspaceFlags = WorkspaceFlags(), output: OutputOption = Output.TABLE) -> int:
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


def _migrate(url: str) -> None:
    from lapse.db.errors import DatabaseError
    from lapse.db.postgres.migration import migrate
    from lapse.workspaces.store.sql import translate

    try:
        migrate(url)
    except DatabaseError as error:
        raise translate(error) from error.__cause__
