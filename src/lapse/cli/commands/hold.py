"""``lapse hold`` and ``lapse release``: nothing lapses while it is held.

A hold stands in what it holds, so nothing has to run, and a decision that was made before loses its compare. It stops
Lapse and nobody else: who stops, archives or deletes something by hand still can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from lapse.cli.flags import NO_WORKSPACE_FLAGS, WorkspaceFlags
from lapse.cli.output import ExitCode, Output, OutputOption, print_result
from lapse.core.errors import UsageError

if TYPE_CHECKING:
    from lapse.cli.workspace_desk import WorkspaceDesk
    from lapse.workspaces.model import Workspace

Place = Annotated[str, Parameter(name="ADDRESS", help="As in workspace/lab.")]


class KeysCannotBeHeldError(UsageError):
    """Keys cannot be held: a key is gone at the instant of its expiry. Give it more time with lapse keys touch."""


class NotHeldHereError(UsageError):
    """{address} is not a workspace/NAME. Objects are held by an annotation, lapse.dev/hold=true."""


def hold(
    address: Place,
    /,
    flags: WorkspaceFlags = NO_WORKSPACE_FLAGS,
    *,
    reason: Annotated[str, Parameter(metavar="TEXT", help="The reason, for others to read.")],
    until: Annotated[
        str,
        Parameter(metavar="WHEN", help="A duration from now, or a time as 2030-01-31T12:00:00Z; never has no end."),
    ] = "never",
    output: OutputOption = Output.TABLE,
) -> int:
    """Keep a workspace from lapsing until the hold ends or is released.

    A second hold replaces the first. People can still stop and archive it.
    """
    from lapse.cli.workspace_desk import change
    from lapse.core.timestamps import read_end
    from lapse.workspaces.model import Ms
    from lapse.workspaces.view import address_of, as_json, end_of_hold

    _demand_workspace(address)

    async def how(desk: WorkspaceDesk, found: Workspace) -> Workspace:
        end = read_end(until, desk.clock.wall_ns())
        end_ms = None if end is None else Ms(end // 1_000_000)
        return await desk.store.hold(found.id, reason, until=end_ms, now=desk.now)

    held, now = change(flags, address, how)
    said = f"Held: {address_of(held)}{end_of_hold(held)}. To let it go: lapse release {address_of(held)}"
    print_result(output, as_json(held, now=now), said)
    return ExitCode.DONE


def release(
    address: Place, /, flags: WorkspaceFlags = NO_WORKSPACE_FLAGS, *, output: OutputOption = Output.TABLE
) -> int:
    """End a hold. A workspace whose time is over lapses at the next look."""
    from lapse.cli.workspace_desk import change
    from lapse.workspaces.view import address_of, as_json

    _demand_workspace(address)
    was_held = False

    async def how(desk: WorkspaceDesk, found: Workspace) -> Workspace:
        nonlocal was_held
        was_held = found.held(desk.now)
        return found if found.hold_reason is None else await desk.store.release(found.id, now=desk.now)

    released, now = change(flags, address, how)
    said = "Released" if was_held else "Nothing to release: not held"
    print_result(output, as_json(released, now=now), f"{said}: {address_of(released)}.")
    return ExitCode.DONE


def _demand_workspace(text: str) -> None:
    """Refuse what cannot be held, or not like this."""
    from lapse.core.address import Address

    kind = Address.parse(text).kind
    if kind == "key":
        raise KeysCannotBeHeldError
    if kind != "workspace":
        raise NotHeldHereError(address=text)
