"""``lapse why``: what was decided about something that may lapse, on what grounds, and what would save it.

The answer is computed here, by the functions that decide, from what the stores hold now; nothing has to run. Of what
is gone the journal tells. Who is connected is known here only where it is counted in a store of its own
(``activity_url``); `lapse up` that counts by itself answers over HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from lapse.cli.flags import WhyFlags
from lapse.cli.output import ExitCode, Output, OutputOption, print_json, print_table
from lapse.core.errors import UsageError

if TYPE_CHECKING:
    from lapse.cli.context import Context
    from lapse.core.address import Address
    from lapse.engine.journal.port import Row
    from lapse.engine.registry import Registration
    from lapse.engine.view import DecisionView
    from lapse.workspaces.model import Ms
    from lapse.workspaces.view import Explanation

_ROWS: Final = 5


class NeverError(UsageError):
    """--at cannot be never. Expected a time, such as 2h or 2030-01-31T12:00:00Z."""


def why(
    address: Annotated[str, Parameter(name="ADDRESS", help="As in workspace/lab.")],
    /,
    flags: WhyFlags = WhyFlags(),
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

    Things of domains of your own are explained in the same way. For what is gone,
    it shows the last rows of the journal.
    """
    from lapse.cli.context import in_context
    from lapse.domains import REGISTRY
    from lapse.engine.registry import DomainVerb
    from lapse.engine.view import to_json
    from lapse.workspaces.view import explanation_facts

    asked = REGISTRY.parse(address)
    owner = REGISTRY.demand(DomainVerb.WHY, asked)
    if owner.build is not None:
        return _why_own(asked, owner, flags, at=at, output=output)

    async def work(context: Context) -> tuple[Explanation | None, list[Row]]:
        return await _explain(context, asked, at)

    told, rows = in_context(flags, work)
    if output is Output.JSON:
        body = {"address": str(asked), "verdict": "gone"} if told is None else to_json(told)
        print_json({**body, "journal": [_row(row) for row in rows]})
        return ExitCode.DONE
    shown = [("address", str(asked)), ("verdict", "gone")] if told is None else explanation_facts(told)
    print_table(("fact", "value"), [*shown, *map(_told, rows)])
    return ExitCode.DONE


async def _explain(context: Context, asked: Any, at: str | None) -> tuple[Explanation | None, list[Row]]:  # noqa: ANN401 - an address, whose module is not imported for help
    from lapse.workspaces.errors import UnknownWorkspaceError
    from lapse.workspaces.view import explain

    store, journal = await context.workspaces(), await context.journal()
    rows = await journal.entries(address=str(asked), limit=_ROWS)
    try:
        found = await store.by_name(asked.name)
    except UnknownWorkspaceError:
        if not rows:
            raise
        return None, rows
    # Of another time nobody knows who will be there.
    signal = (await context.signals([found])).get(found.id) if at is None else None
    now = context.now if at is None else _moment(at, context.machine.wall_ns())
    return explain(found, signal, now, lease_seconds=context.settings.proxy_lease.seconds), rows


def _moment(text: str, now: int) -> Ms:
    from lapse.workspaces.model import Ms

    return Ms(_moment_ns(text, now) // 1_000_000)


def _moment_ns(text: str, now: int) -> int:
    from lapse.core.timestamps import read_moment

    moment = read_moment(text, now)
    if moment is None:
        raise NeverError
    return moment


def _why_own(asked: Address, owner: Registration, flags: WhyFlags, *, at: str | None, output: Output) -> int:
    """Explain a thing of another distribution's domain, by its own decision."""
    from lapse.app.domains import NothingThereError, own_domain
    from lapse.cli.context import in_context
    from lapse.core.clock import UnixNs
    from lapse.engine.safety.sqlite import SQLiteHolds
    from lapse.engine.view import decision_view, known, to_json

    async def work(context: Context) -> tuple[DecisionView | None, list[Row]]:
        rows = await (await context.journal()).entries(address=str(asked), limit=_ROWS)
        own, now = own_domain(owner, context.settings, context.clock), context.clock.wall_ns()
        try:
            found = await own.find(asked)
        except NothingThereError:
            if not rows:
                raise
            return None, rows
        moment = UnixNs(now if at is None else _moment_ns(at, now))
        kept = await SQLiteHolds(context.embedded.database).held(owner.name, [found.uid])
        return decision_view(own.parts.domain.decide(found, moment), kept.get(found.uid, found.hold), moment), rows

    told, rows = in_context(flags, work)
    body = {"verdict": "gone"} if told is None else to_json(told)
    if output is Output.JSON:
        print_json({"address": str(asked), "domain": owner.name, **body, "journal": [_row(row) for row in rows]})
        return ExitCode.DONE
    facts = [("address", str(asked)), *known(body.items())]
    print_table(("fact", "value"), [*facts, *map(_told, rows)])
    return ExitCode.DONE


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
