"""``lapse why``: what was decided about something that may lapse, on what grounds, and what would save it.

The answer is computed here, by the functions that decide, from what the stores hold now; nothing has to run. Of what
is gone the journal tells. Who is connected is known here only where it is counted in a store of its own
(``activity_url``); `lapse up` that counts by itself answers over HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from lapse.cli.flags import NO_WHY_FLAGS, WhyFlags
from lapse.cli.output import ExitCode, Output, OutputOption, print_json, print_table
from lapse.core.errors import UsageError

if TYPE_CHECKING:
    from lapse.cli.workspace_desk import WorkspaceDesk
    from lapse.engine.journal.port import Row
    from lapse.workspaces.explaining import Explanation
    from lapse.workspaces.model import Ms

_ROWS: Final = 5


class NotExplainedHereError(UsageError):
    """{address} is not a workspace/NAME. For others see lapse requests get and lapse history show."""


class NeverError(UsageError):
    """--at cannot be never. Expected a time, such as 2h or 2030-01-31T12:00:00Z."""


def why(
    address: Annotated[str, Parameter(name="ADDRESS", help="As in workspace/lab.")],
    /,
    flags: WhyFlags = NO_WHY_FLAGS,
    *,
    at: Annotated[
        str | None,
        Parameter(
            metavar="WHEN", help="The time to answer for: a duration from now, or a time as 2030-01-31T12:00:00Z."
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> int:
    """Tell why a workspace is kept or lapses, when that will be, and what would keep it.

    For a workspace that is gone, it shows the last rows of the journal.
    """
    from lapse.cli.workspace_desk import at_store
    from lapse.core.address import Address
    from lapse.workspaces import explaining

    asked = Address.parse(address)
    if asked.kind != "workspace":
        raise NotExplainedHereError(address=address)

    async def work(desk: WorkspaceDesk) -> tuple[Explanation | None, list[Row]]:
        return await _explain(desk, asked, at)

    told, rows = at_store(flags, work)
    if output is Output.JSON:
        body = {"address": str(asked), "verdict": "gone"} if told is None else explaining.as_json(told)
        print_json({**body, "journal": [_row(row) for row in rows]})
        return ExitCode.DONE
    shown = [("address", str(asked)), ("verdict", "gone")] if told is None else explaining.facts(told)
    print_table(("fact", "value"), [*[(fact, text) for fact, text in shown if text], *map(_told, rows)])
    return ExitCode.DONE


async def _explain(desk: WorkspaceDesk, asked: Any, at: str | None) -> tuple[Explanation | None, list[Row]]:  # noqa: ANN401 - an address, whose module is not imported for help
    from lapse.cli.workspace_desk import signals_of
    from lapse.workspaces.errors import UnknownWorkspaceError
    from lapse.workspaces.explaining import explain

    rows = await _journal(desk, str(asked))
    try:
        found = await desk.store.by_name(asked.name)
    except UnknownWorkspaceError:
        if not rows:
            raise
        return None, rows
    # Of another time nobody knows who will be there.
    signal = (await signals_of(desk, [found])).get(found.id) if at is None else None
    now = desk.now if at is None else _moment(at, desk.clock.wall_ns())
    return explain(found, signal, now, lease_seconds=desk.settings.proxy_lease.seconds), rows


async def _journal(desk: WorkspaceDesk, address: str) -> list[Row]:
    from lapse.cli.workspace_desk import journal_of

    async with journal_of(desk) as journal:
        return await journal.entries(address=address, limit=_ROWS)


def _moment(text: str, now: int) -> Ms:
    from lapse.core.timestamps import read_moment
    from lapse.workspaces.model import Ms

    moment = read_moment(text, now)
    if moment is None:
        raise NeverError
    return Ms(moment // 1_000_000)


def _row(row: Row) -> dict[str, Any]:
    from lapse.core.timestamps import to_timestamp

    return {
        "time": to_timestamp(row.time_ns),
        "verdict": row.verdict,
        "reason": row.reason,
        "outcome": row.outcome.value,
        "rule": row.policy,
        "actor": row.actor,
        "details": row.details,
    }


def _told(row: Row) -> tuple[str, str]:
    from lapse.core.timestamps import to_timestamp

    policy = f", {row.policy}" if row.policy else ""  # a person needs none
    detail = "".join(f", {name} {value}" for name, value in (row.details or {}).items() if value is not None)
    return (
        "journal",
        f"{to_timestamp(row.time_ns)} {row.outcome.value} ({row.reason}{policy}{detail}) by {row.actor}",
    )
