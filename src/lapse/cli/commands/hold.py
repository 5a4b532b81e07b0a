"""``lapse hold`` and ``lapse release``: nothing lapses while it is held.

A hold on a workspace stands in its row, so a decision that was made before loses its compare. A hold on a thing of a
domain of your own is kept by the engine, in the state folder. Either way nothing has to run. A hold stops Lapse and
nobody else: who stops, archives or deletes something by hand still can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from lapse.cli.flags import WorkspaceFlags
from lapse.cli.output import ExitCode, Output, OutputOption, print_result
from lapse.domains import REGISTRY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lapse.cli.context import Context
    from lapse.core.address import Address
    from lapse.engine.domain import Candidate
    from lapse.engine.registry import Registration
    from lapse.engine.safety.holds import Hold, HoldStore
    from lapse.workspaces.model import Workspace

    OnThing = Callable[[HoldStore, Candidate[Any], int], Awaitable[Hold | None]]

Held = Annotated[str, Parameter(name="ADDRESS", help="As in workspace/lab.")]


def hold(
    address: Held,
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
    """Keep a workspace from lapsing until the hold ends or is released.

    Things of domains of your own are held in the same way. A second hold replaces
    the first. People can still stop and archive a workspace.
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


def release(address: Held, /, flags: WorkspaceFlags = WorkspaceFlags(), *, output: OutputOption = Output.TABLE) -> int:
    """End a hold. A workspace whose time is over lapses at the next look."""
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
