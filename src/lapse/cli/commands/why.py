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
    from lapse.core.clock import UnixNs
    from lapse.core.decision import Decision
    from lapse.engine.journal.port import Row
    from lapse.engine.registry import Registration
    from lapse.engine.safety.holds import Hold
    from lapse.workspaces.explaining import Explanation
    from lapse.workspaces.model import Ms

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
    from lapse.workspaces import explaining

    asked = REGISTRY.parse(address)
    owner = REGISTRY.demand(DomainVerb.WHY, asked)
    if owner.build is not None:
        return _why_own(asked, owner, flags, at=at, output=output)

    async def work(context: Context) -> tuple[Explanation | None, list[Row]]:
        return await _explain(context, asked, at)

    told, rows = in_context(flags, work)
    if output is Output.JSON:
        body = {"address": str(asked), "verdict": "gone"} if told is None else explaining.as_json(told)
        print_json({**body, "journal": [_row(row) for row in rows]})
        return ExitCode.DONE
    shown = [("address", str(asked)), ("verdict", "gone")] if told is None else explaining.facts(told)
    print_table(("fact", "value"), [*[(fact, text) for fact, text in shown if text], *map(_told, rows)])
    return ExitCode.DONE


async def _explain(context: Context, asked: Any, at: str | None) -> tuple[Explanation | None, list[Row]]:  # noqa: ANN401 - an address, whose module is not imported for help
    from lapse.workspaces.errors import UnknownWorkspaceError
    from lapse.workspaces.explaining import explain

    rows = await _journal(context, str(asked))
    try:
        found = await (await context.workspaces()).by_name(asked.name)
    except UnknownWorkspaceError:
        if not rows:
            raise
        return None, rows
    # Of another time nobody knows who will be there.
    signal = (await context.signals([found])).get(found.id) if at is None else None
    now = context.now if at is None else _moment(at, context.machine.wall_ns())
    return explain(found, signal, now, lease_seconds=context.settings.proxy_lease.seconds), rows


async def _journal(context: Context, address: str) -> list[Row]:

    journal = await context.workspace_journal()
    return await journal.entries(address=address, limit=_ROWS)


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

    async def work(context: Context) -> tuple[dict[str, Any], list[Row]]:
        rows = await context.journal.entries(address=str(asked), limit=_ROWS)
        own, now = own_domain(owner, context.settings, context.clock), context.clock.wall_ns()
        try:
            found = await own.find(asked)
        except NothingThereError:
            if not rows:
                raise
            return {"verdict": "gone"}, rows
        moment = UnixNs(now if at is None else _moment_ns(at, now))
        kept = await SQLiteHolds(context.embedded.database).held(owner.name, [found.uid])
        return _decided(own.parts.domain.decide(found, moment), kept.get(found.uid, found.hold), moment), rows

    told, rows = in_context(flags, work)
    if output is Output.JSON:
        print_json({"address": str(asked), "domain": owner.name, **told, "journal": [_row(row) for row in rows]})
        return ExitCode.DONE
    facts = [("address", str(asked)), *[(fact, text) for fact, text in told.items() if text]]
    print_table(("fact", "value"), [*facts, *map(_told, rows)])
    return ExitCode.DONE


def _decided(decision: Decision, hold: Hold | None, now: UnixNs) -> dict[str, Any]:
    from lapse.core.decision import Due, Keep, KeepReason
    from lapse.core.timestamps import to_timestamp

    verdict, anchor, deadline = decision.verdict, decision.anchor, decision.deadline
    is_held = hold is not None and hold.active(now)
    word = "due" if isinstance(verdict, Due) else "keep" if isinstance(verdict, Keep) else "unknown"
    return {
        "verdict": "keep" if is_held else word,
        "reason": (KeepReason.HELD if is_held else verdict.reason).value,
        "anchor": None if anchor is None else to_timestamp(anchor),
        "deadline": None if deadline is None else to_timestamp(deadline),
        "hold": hold.reason or "yes" if hold is not None and is_held else None,
    }


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
