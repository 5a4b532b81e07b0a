"""Verbs for things of every domain: ``lapse hold``, ``release``, ``why``, ``freeze`` and ``resume``.

Nothing has to run for them. Nothing lapses while it is held. A hold on a workspace stands in its row, so a decision
that was made before loses its compare. A hold on a thing of a domain of your own is kept by the engine, in the state
folder. A hold stops Lapse and nobody else: who stops, archives or deletes something by hand still can.

``lapse why`` tells what was decided, on what grounds, and what would save the thing. The answer is computed here, by
the functions that decide, from what the stores hold now. Of what is gone the journal tells. Who is connected is known
here only where it is counted in a store of its own (``activity_url``); `lapse up` that counts by itself answers over
HTTP.

``lapse freeze`` stops a domain from ending anything, and ``lapse resume`` lets it go on: in the record of ``lapse up``
(the state folder, or the database that ``database_url`` names), and on a cluster when one is named. What is frozen is
written where whoever runs later reads it.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from cyclopts import Parameter

from lapse.cli.context import InCluster, who
from lapse.cli.flags import FreezeFlags, WhyFlags, WorkspaceFlags
from lapse.cli.output import ExitCode, Output, OutputOption, print_json, print_result, print_table
from lapse.core.errors import UsageError
from lapse.domains import REGISTRY

if TYPE_CHECKING:
    from lapse.cli.context import Context
    from lapse.core.address import Address
    from lapse.engine.journal.port import Row
    from lapse.engine.registry import Registration
    from lapse.engine.view import DecisionView
    from lapse.workspaces.model import Ms
    from lapse.workspaces.view import Explanation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lapse.cli.context import Context
    from lapse.core.address import Address
    from lapse.engine.domain import Candidate
    from lapse.engine.registry import Registration
    from lapse.engine.safety.holds import Hold, HoldStore
    from lapse.workspaces.model import Workspace

    OnThing = Callable[[HoldStore, Candidate[Any], int], Awaitable[Hold | None]]

Thing = Annotated[
    str, Parameter(name="ADDRESS", help="As in workspace/lab, or KIND/NAME of a domain of your own, as in scratch/a.")
]


def hold(
    address: Thing,
    /,
    flags: WorkspaceFlags = WorkspaceFlags(),
    *,
    reason: Annotated[str, Parameter(metavar="TEXT", help="The reason, for others to read.")],
    until: Annotated[
        str,
        Parameter(metavar="WHEN", help="A duration from now, or a time as 2030-01-31T12:00:00Z; never has no end."),
    ] = "never",
    output: OutputOption = Output.TABLE,
) -> int:
    """Keep a workspace, or a thing of a domain of your own, from lapsing.

    Until the hold ends or is released. A second hold replaces the first. People
    can still stop and archive a workspace.
    """
    from lapse.cli.context import change_workspace
    from lapse.core.timestamps import read_end
    from lapse.workspaces.model import Ms
    from lapse.workspaces.view import end_of_hold, view_of

    asked, owner = _owner(address)
    if owner.build is not None:
        return _hold_own(asked, owner, flags, reason=reason, until=until, output=output)

    async def how(context: Context, found: Workspace) -> Workspace:
        end = read_end(until, context.machine.wall_ns())
        end_ms = None if end is None else Ms(end // 1_000_000)
        return await (await context.workspaces()).hold(found.id, reason, until=end_ms, now=context.now)

    held, now = change_workspace(flags, address, how)
    view = view_of(held, now)
    said = f"Held: {view.address}{end_of_hold(view.hold_until)}. To let it go: lapse release {view.address}"
    print_result(output, view, said)
    return ExitCode.DONE


def release(address: Thing, /, flags: WorkspaceFlags = WorkspaceFlags(), *, output: OutputOption = Output.TABLE) -> int:
    """End a hold. What is over lapses at the next look."""
    from lapse.cli.context import change_workspace
    from lapse.workspaces.view import view_of

    asked, owner = _owner(address)
    if owner.build is not None:
        return _release_own(asked, owner, flags, output=output)
    was_held = False

    async def how(context: Context, found: Workspace) -> Workspace:
        nonlocal was_held
        was_held = found.held(context.now)
        return (
            found
            if found.hold_reason is None
            else await (await context.workspaces()).release(found.id, now=context.now)
        )

    released, now = change_workspace(flags, address, how)
    view, said = view_of(released, now), "Released" if was_held else "Nothing to release: not held"
    print_result(output, view, f"{said}: {view.address}.")
    return ExitCode.DONE


def _owner(text: str) -> tuple[Address, Registration]:
    """Return what is meant, and its domain; refuses what cannot be held, or not like this."""
    from lapse.engine.registry import DomainVerb

    asked = REGISTRY.parse(text)
    return asked, REGISTRY.demand(DomainVerb.HOLD, asked)


# --- domains of other distributions -----------------------------------------------------------------------------------


def _hold_own(
    asked: Address, owner: Registration, flags: WorkspaceFlags, *, reason: str, until: str, output: Output
) -> int:
    from lapse.cli.context import who
    from lapse.core.timestamps import read_end
    from lapse.engine.safety.holds import Hold, PlacedHold
    from lapse.engine.view import hold_view

    by = who()

    async def place(holds: HoldStore, found: Candidate[Any], now: int) -> Hold:
        hold = Hold(reason, read_end(until, now))
        await holds.hold(PlacedHold(owner.name, found.uid, str(found.address), hold, now, by))
        return hold

    uid, hold = _on_thing(asked, owner, flags, place)
    said = f"Held: {asked}. To let it go: lapse release {asked}"
    print_result(output, hold_view(asked, owner.name, uid, hold), said)
    return ExitCode.DONE


def _release_own(asked: Address, owner: Registration, flags: WorkspaceFlags, *, output: Output) -> int:
    from lapse.core.clock import UnixNs
    from lapse.engine.view import hold_view

    async def remove(holds: HoldStore, found: Candidate[Any], now: int) -> Hold | None:
        hold = await holds.release(owner.name, found.uid)
        return hold if hold is not None and hold.active(UnixNs(now)) else None

    uid, hold = _on_thing(asked, owner, flags, remove)
    said = "Nothing to release: not held" if hold is None else "Released"
    print_result(output, hold_view(asked, owner.name, uid, None), f"{said}: {asked}.")
    return ExitCode.DONE


def _on_thing(asked: Address, owner: Registration, flags: WorkspaceFlags, work: OnThing) -> tuple[str, Hold | None]:
    """Do something to the hold on a thing of the state folder's domains; return the thing's uid as well."""
    from lapse.app.domains import own_domain
    from lapse.cli.context import in_context
    from lapse.engine.safety.sqlite import SQLiteHolds

    async def at(context: Context) -> tuple[str, Hold | None]:
        clock = context.clock
        found = await own_domain(owner, context.settings, clock).find(asked)
        return found.uid, await work(SQLiteHolds(context.embedded.database), found, clock.wall_ns())

    return in_context(flags, at)


_ROWS: Final = 5


class NeverError(UsageError):
    """--at cannot be never. Expected a time, such as 2h or 2030-01-31T12:00:00Z."""


def why(
    address: Thing,
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
    """Tell why a workspace, or a thing of a domain of your own, is kept or lapses.

    And when that will be, what would keep it, and whether its domain is frozen. For
    what is gone, it shows the last rows of the journal.
    """
    from lapse.cli.context import in_context
    from lapse.domains import REGISTRY
    from lapse.engine.registry import DomainVerb
    from lapse.engine.view import to_json
    from lapse.workspaces.view import explanation_rows

    asked = REGISTRY.parse(address)
    owner = REGISTRY.demand(DomainVerb.WHY, asked)
    if owner.build is not None:
        return _why_own(asked, owner, flags, at=at, output=output)

    async def work(context: Context) -> tuple[Explanation | None, list[Row]]:
        return await _explain(context, asked, owner.name, at)

    told, rows = in_context(flags, work)
    if output is Output.JSON:
        body = {"address": str(asked), "verdict": "gone"} if told is None else to_json(told)
        print_json({**body, "journal": [_row(row) for row in rows]})
        return ExitCode.DONE
    shown = [("address", str(asked)), ("verdict", "gone")] if told is None else explanation_rows(told)
    print_table(("fact", "value"), [*shown, *map(_told, rows)])
    return ExitCode.DONE


async def _explain(
    context: Context, asked: Address, domain: str, at: str | None
) -> tuple[Explanation | None, list[Row]]:
    from lapse.engine.safety.clock_guard import freeze_of
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
    frozen = await freeze_of(await context.freezes(), domain, context.clock)
    return explain(found, signal, now, lease_seconds=context.settings.proxy_lease.seconds, frozen=frozen), rows


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
    from lapse.engine.safety.clock_guard import freeze_of
    from lapse.engine.safety.sqlite import SQLiteHolds
    from lapse.engine.view import decision_rows, decision_view, to_json

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
        frozen = await freeze_of(await context.freezes(), owner.name, context.clock)
        return decision_view(own.decide(found, moment), kept.get(found.uid, found.hold), moment, frozen), rows

    told, rows = in_context(flags, work)
    if output is Output.JSON:
        body = {"verdict": "gone"} if told is None else to_json(told)
        print_json({"address": str(asked), "domain": owner.name, **body, "journal": [_row(row) for row in rows]})
        return ExitCode.DONE
    shown = [("verdict", "gone")] if told is None else decision_rows(told)
    print_table(("fact", "value"), [("address", str(asked)), *shown, *map(_told, rows)])
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
    detail = "".join(f", {_detail(name, value)}" for name, value in (row.details or {}).items() if value is not None)
    return (
        "journal",
        f"{to_timestamp(row.time_ns)} {row.outcome.value} ({row.reason}{policy}{detail}) by {row.actor}",
    )


def _detail(name: str, value: object) -> str:
    """Print a detail of a row; what is counted in nanoseconds since 1970 is a time for people."""
    from lapse.core.timestamps import to_timestamp

    if name.endswith("_ns") and isinstance(value, int):
        return f"{name.removesuffix('_ns')} {to_timestamp(value)}"
    return f"{name} {value}"


if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lapse.cli.context import Context
    from lapse.engine.safety.freeze import GateStore
    from lapse.settings import Settings

    T = TypeVar("T")
    Work = Callable[[GateStore, int], Awaitable[T]]

Domain = Annotated[str, Parameter(help=f"{', '.join(REGISTRY.freezable())}, or all.")]


def freeze(
    domain: Domain,
    /,
    flags: FreezeFlags = FreezeFlags(),
    *,
    reason: Annotated[str, Parameter(metavar="TEXT", help="The reason, for others to read.")] = "",
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """End nothing of a domain until it is resumed.

    What is being ended at this moment is not stopped; a running process sees the freeze within seconds.
    A second freeze takes the place of the first, and keeps its reason where none is given.
    """
    from lapse.core.clock import UnixNs
    from lapse.core.timestamps import to_timestamp
    from lapse.engine.safety.freeze import Freeze, FreezeReason, freeze_row

    _demand(domain, flags, cluster=cluster)
    by = who()

    async def work(store: GateStore, now: int) -> Freeze:
        wanted = Freeze(UnixNs(now), reason or await _reason_before(store, domain, now), by)
        await store.freeze(domain, wanted, freeze_row(domain, wanted, reason=FreezeReason.BY_PERSON, now=now))
        return wanted

    done, place = _at_gate(flags, work, cluster=cluster)
    result = {"domain": domain, "frozen": True, "since": to_timestamp(done.since or 0), "reason": done.reason, "by": by}
    said = f"Frozen: {_named(domain)} in {place}. To resume{_resume(domain, flags, cluster=cluster)}"
    print_result(output, {**result, "place": place}, said)
    return ExitCode.DONE


def resume(
    domain: Domain,
    /,
    flags: FreezeFlags = FreezeFlags(),
    *,
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Resume a frozen domain, with a deletion budget that is counted anew.

    all resumes everything that is frozen, and removes entries that cannot be read.
    """
    from lapse.engine.safety.freeze import ALL, resume_row

    _demand(domain, flags, cluster=cluster)
    by = who()

    async def work(store: GateStore, now: int) -> tuple[list[str], bool]:
        done = await store.resume(domain, resume_row(domain, by=by, now=now))
        return done, ALL in (await store.load(now)).frozen

    (resumed, all_frozen), place = _at_gate(flags, work, cluster=cluster)
    said = f"Resumed: {', '.join(resumed)} in {place}." if resumed else f"Nothing to resume: not frozen in {place}."
    if all_frozen:
        said += f" Still frozen, because everything is frozen; to resume{_resume(ALL, flags, cluster=cluster)}"
    print_result(output, {"domain": domain, "resumed": resumed, "frozen": all_frozen, "place": place}, said)
    return ExitCode.DONE


async def _reason_before(store: GateStore, domain: str, now: int) -> str:
    """Return why it is frozen already; empty where it is not, or where that cannot be read."""
    from lapse.engine.safety.freeze import GateUnreadableError

    try:
        before = (await store.load(now)).frozen.get(domain)
    except GateUnreadableError:
        return ""
    return "" if before is None else before.reason


# --- where ------------------------------------------------------------------------------------------------------------


def _demand(domain: str, flags: FreezeFlags, *, cluster: bool) -> None:
    from lapse.engine.registry import DomainVerb, UnsupportedVerbError, no_such_domain
    from lapse.engine.safety.freeze import ALL

    on_cluster = cluster or flags.names_cluster
    known = (*REGISTRY.freezable(cluster=on_cluster), ALL)
    if domain in known:
        return
    for one in REGISTRY.built_in:
        if one.name == domain and not one.supports(DomainVerb.FREEZE):
            raise UnsupportedVerbError(problem=one.unsupported[DomainVerb.FREEZE])
    raise no_such_domain(domain, known)


def _at_gate(flags: FreezeFlags, work: Work[T], *, cluster: bool) -> tuple[T, str]:
    """Do some work where what is frozen is written; return also where that is."""
    from lapse.app.cluster import LeaseNamespaceError, gate_key
    from lapse.cli.context import in_context
    from lapse.kube.errors import NotFoundError

    async def at_gate(context: Context) -> tuple[T, str]:
        try:
            store = await context.freezes()  # first, because the clock goes on from what stands there
            return await work(store, context.clock.wall_ns()), context.where_frozen
        except NotFoundError as error:
            raise LeaseNamespaceError(namespace=gate_key(context.settings).namespace) from error

    def rights(settings: Settings) -> str:
        return f"get, create and patch on configmaps in {settings.lease_namespace}"

    return in_context(flags, at_gate, cluster=cluster, rights=rights)


def _resume(domain: str, flags: FreezeFlags, *, cluster: bool) -> str:
    """Say which command resumes it in the same context: one that can be pasted, so that no flag is half shown.

    A URL with a password is left out, and named: what came from the file or the environment is there the next time too.
    """
    from lapse.settings import show_value

    given = {**({} if flags.config is None else {"config": flags.config}), **flags.given}
    named = {f"--{key.replace('_', '-')}": value for key, value in given.items()}
    secret = [flag for flag, value in named.items() if show_value(value) != value]
    shown = [f"{flag} {shlex.quote(value)}" for flag, value in named.items() if flag not in secret]
    command = " ".join(["lapse resume", *(["--cluster"] if cluster else []), *shown, domain])
    same = f", with the same {' and '.join(secret)}" if secret else ""
    return f"{same}: {command}"


def _named(domain: str) -> str:
    return "everything" if domain == "all" else domain
