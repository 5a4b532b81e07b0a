"""``lapse workspaces``: programs that run while somebody uses them. Create, look, start, stop, archive, delete, open.

The commands work on the workspace store itself, so they need no server: what is asked for is carried out by whoever
runs ``lapse up`` on the same store. A ticket is made in the keys store that ``lapse up`` and the proxies read, in the
name of the owner's token of the state folder; whoever can write these stores is trusted with what is in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter, Token

from lapse.cli.flags import OpenWorkspaceFlags, WorkspaceFlags
from lapse.cli.output import (
    ExitCode,
    Output,
    OutputOption,
    message,
    print_document,
    print_link,
    print_result,
    print_table,
    print_views,
)
from lapse.cli.usage import NumberError, check_program, commands_of
from lapse.cli.waiting import NO_WAIT, Timeout, Waiting
from lapse.core.errors import LapseError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lapse.cli.context import Context
    from lapse.engine.journal.port import AuditReason, Journal
    from lapse.workspaces.activity.port import Signal
    from lapse.workspaces.model import Changes, Ms, Workspace, WorkspaceId
    from lapse.workspaces.store.port import WorkspaceStore
    from lapse.workspaces.view import WorkspaceView

app = App(
    "workspaces",
    help="Create, open, stop and archive workspaces.",
    help_epilogue="A workspace is named NAME, or workspace/NAME. What is asked for is carried out by lapse up,\n"
    "on the same store: workspaces.db in the state folder, or what --database-url names.",
    default_parameter=Parameter(negative=()),
)
_STYLES: Final = {"RUNNING": "green", "ERROR": "red"}
_MS: Final = 1_000_000
_command = commands_of(app)


class NoTTLGivenError(UsageError):
    """Say which TTL: --standby DURATION, --archive DURATION or both."""


class NothingToSetError(UsageError):
    """Say what to change: --port, --owner, --standby-ttl, --archive-ttl, --probe, or a command after --."""


class NotDeletedError(LapseError):
    """{address} is not deleted: the answer was not yes. To delete it without a question: --yes."""


class NoCommandError(UsageError):
    """Say what the workspace runs, after --, as in lapse workspaces create lab --port 9000 -- python3 serve.py."""


class ProxyPortUnknownError(UsageError):
    """proxy_port is 0, so lapse up picks one, and this command does not know which. Name it with --proxy-port."""


def _seconds(_: type, tokens: tuple[Token, ...]) -> int:
    from lapse.core.duration import Duration
    from lapse.workspaces.errors import InvalidWorkspaceError
    from lapse.workspaces.model import check_ttl

    given, field = tokens[0].value, (tokens[0].keyword or "ttl").removeprefix("--")
    duration = Duration.parse(given)
    if duration.is_never or duration.seconds % 1:
        expected = "whole seconds such as 90s or 5m; to keep a workspace for good, hold it"
        raise InvalidWorkspaceError(field=field, given=given, expected=expected)
    check_ttl(field, int(duration.seconds))
    return int(duration.seconds)


Name = Annotated[str, Parameter(name="NAME", help="The name of a workspace.")]
StandbyTTL = Annotated[
    int | None,
    Parameter(metavar="DURATION", help="How long it may be idle before it is stopped.", converter=_seconds, n_tokens=1),
]
ArchiveTTL = Annotated[
    int | None,
    Parameter(
        metavar="DURATION", help="How long it stays in standby before it is archived.", converter=_seconds, n_tokens=1
    ),
]
Probe = Annotated[
    str | None,
    Parameter(
        metavar="PROBE",
        help="How to ask its program whether it is at work: jupyter, or a path on its port.",
        show_default=False,
    ),
]


# --- creating ---------------------------------------------------------------------------------------------------------


@_command(
    "lapse workspaces create lab --port 9000 -- sh -c 'python3 -m http.server $PORT --bind $HOST'",
    "lapse workspaces create lab --port 9000 --standby-ttl 10m -- ./serve",
)
def create(  # noqa: PLR0913 - one per option, all of them named
    name: Annotated[str, Parameter(help="A DNS label: it becomes part of a host name.")],
    /,
    *command: Annotated[str, Parameter(help="The command that it runs, after --.", allow_leading_hyphen=True)],
    port: Annotated[int, Parameter(metavar="N", help="The port that the program listens on.")],
    owner: Annotated[
        str | None, Parameter(metavar="NAME", help="Its owner; by default you.", show_default=False)
    ] = None,
    standby_ttl: StandbyTTL = None,
    archive_ttl: ArchiveTTL = None,
    probe: Probe = None,
    no_start: Annotated[
        bool, Parameter(help="Do not start it until it is started by hand or opened.", show_default=False)
    ] = False,
    waiting: Waiting = NO_WAIT,
    flags: WorkspaceFlags = WorkspaceFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """Create a workspace: a program that is stopped while nobody uses it.

    It gets a directory of its own and runs there as the user of lapse up. Its
    program must listen on the address that HOST and PORT in its environment
    name, and on no other: a program that listens on all addresses can be
    reached past the proxy, without its check of the user.
    """
    from lapse.app.workspaces import node_of, user_name
    from lapse.cli.context import in_context
    from lapse.engine.journal.port import AuditReason
    from lapse.workspaces import verbs
    from lapse.workspaces.model import DesiredState, NewWorkspace
    from lapse.workspaces.view import address_of

    if not command:
        raise NoCommandError
    check_program(command)
    waiting.check()

    async def work(context: Context) -> tuple[Workspace, Ms]:
        standby, archive = context.settings.default_standby_ttl, context.settings.default_archive_ttl
        new = NewWorkspace(
            name=name,
            owner=user_name() if owner is None else owner,
            command=command,
            port=port,
            node_id=node_of(context.settings),
            desired_state=DesiredState.PENDING if no_start else DesiredState.RUNNING,
            standby_ttl_seconds=int(standby.seconds) if standby_ttl is None else standby_ttl,
            archive_ttl_seconds=int(archive.seconds) if archive_ttl is None else archive_ttl,
            probe=probe,
        )
        store, journal = await context.workspaces(), await context.journal()
        made = await verbs.create(store, new, now=context.now)
        await _tell(journal, AuditReason.WORKSPACE_CREATED, made, context.now)
        return await _waited(context, made, waiting), context.now

    made, now = in_context(flags, work)
    if waiting.wait:
        return _outcome(made, now, output)
    then = "It starts when it is opened." if no_start else "lapse up starts it."
    print_result(output, _view(made, now), f"Created: {address_of(made)}. {then}")
    return ExitCode.DONE


async def _tell(journal: Journal, reason: AuditReason, workspace: Workspace, now: Ms) -> None:
    """Write into the journal who has done this with a workspace."""
    from lapse.cli.context import who
    from lapse.engine.journal.audit import tell
    from lapse.workspaces.model import DOMAIN
    from lapse.workspaces.verbs import told

    await tell(journal, told(reason, workspace, actor=who(), now=now), domain=DOMAIN)


# --- looking ----------------------------------------------------------------------------------------------------------


@_command("lapse workspaces list", "lapse workspaces list --owner alice -o json", name="list")
def list_workspaces(
    *,
    owner: Annotated[str | None, Parameter(metavar="NAME", help="Only this owner's.")] = None,
    limit: Annotated[int, Parameter(metavar="N", help="How many to print at most; 0 for all.")] = 100,
    flags: WorkspaceFlags = WorkspaceFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """List workspaces by name.

    NEXT tells which state each one goes to when nobody uses it, and when at the
    earliest: a connection keeps it longer. Connections are known here only with
    activity_url; otherwise only lapse up knows them.
    """
    if limit < 0:
        raise NumberError(name="--limit", given=limit, expected="0 for all, or a number above 0")

    from lapse.cli.context import in_context
    from lapse.workspaces.view import columns, view_of

    async def work(context: Context) -> tuple[list[Workspace], bool, Mapping[WorkspaceId, Signal], Ms]:
        found = await _read(await context.workspaces(), owner=owner, most=limit)
        shown = found[:limit] if limit else found
        return shown, bool(limit and len(found) > limit), await context.signals(shown), context.now

    shown, more, signals, now = in_context(flags, work)
    views = [view_of(one, now) for one in shown]
    if output.for_programs:
        print_document(output, {"items": views, "next": views[-1].name if more else None})
    elif views:
        print_views(views, columns(views, signals), now * _MS, styles=_STYLES)
        if more:
            message("There are more; --limit 0 shows all.")
    else:
        message("There are no such workspaces." if owner else "There are no workspaces.")
    return ExitCode.DONE


async def _read(store: WorkspaceStore, *, owner: str | None, most: int) -> list[Workspace]:
    """Return one more than ``most``, or all for 0."""
    from lapse.workspaces.model import LARGEST_PAGE

    found: list[Workspace] = []
    while not most or len(found) <= most:
        page = await store.list(owner=owner, limit=LARGEST_PAGE, after=found[-1].name if found else None)
        found += page
        if len(page) < LARGEST_PAGE:
            break
    return found


@_command("lapse workspaces show lab", "lapse workspaces show workspace/lab -o json")
def show(name: Name, /, *, flags: WorkspaceFlags = WorkspaceFlags(), output: OutputOption = Output.TABLE) -> int:
    """Show one workspace: wanted and observed state, when it lapses."""
    from lapse.cli.context import in_context, workspace_name
    from lapse.workspaces.view import detail_rows, view_of

    async def work(context: Context) -> tuple[Workspace, Signal | None, Ms]:
        found = await (await context.workspaces()).by_name(workspace_name(name))
        return found, (await context.signals([found])).get(found.id), context.now

    found, signal, now = in_context(flags, work)
    if output.for_programs:
        print_document(output, view_of(found, now))
    else:
        print_table(("fact", "value"), detail_rows(view_of(found, now), signal, now * _MS), styles=_STYLES)
    return ExitCode.DONE


def _view(found: Workspace, now: Ms) -> WorkspaceView:
    from lapse.workspaces.view import view_of

    return view_of(found, now)


def _duration(seconds: int) -> str:
    from lapse.core.duration import Duration

    return str(Duration.of_seconds(seconds))


# --- wanting ----------------------------------------------------------------------------------------------------------


@_command("lapse workspaces start lab", "lapse workspaces start lab --wait --timeout 2m")
def start(
    name: Name,
    /,
    *,
    waiting: Waiting = NO_WAIT,
    flags: WorkspaceFlags = WorkspaceFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """Let a workspace run, from standby or from the archive.

    An error is cleared, and the start is tried again.
    """
    return _ask("start", name, waiting=waiting, flags=flags, output=output)


@_command("lapse workspaces stop lab", "lapse workspaces stop lab --wait --timeout 2m")
def stop(
    name: Name,
    /,
    *,
    waiting: Waiting = NO_WAIT,
    flags: WorkspaceFlags = WorkspaceFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """Stop a workspace; its data stays in place.

    Opening it starts it again.
    """
    return _ask("stop", name, waiting=waiting, flags=flags, output=output)


@_command("lapse workspaces archive lab", "lapse workspaces archive lab --wait --timeout 10m")
def archive(
    name: Name,
    /,
    *,
    waiting: Waiting = NO_WAIT,
    flags: WorkspaceFlags = WorkspaceFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """Stop a workspace and move its data to the archive.

    Starting or opening it brings the data back.
    """
    return _ask("archive", name, waiting=waiting, flags=flags, output=output)


def _ask(verb: str, name: str, *, waiting: Waiting, flags: WorkspaceFlags, output: Output) -> int:
    from lapse.cli.context import change_workspace
    from lapse.workspaces.verbs import Verb, ask
    from lapse.workspaces.view import address_of

    waiting.check()

    async def how(context: Context, found: Workspace) -> Workspace:
        return await _waited(
            context, await ask(await context.workspaces(), Verb(verb), found, now=context.now), waiting
        )

    changed, now = change_workspace(flags, name, how)
    if waiting.wait:
        return _outcome(changed, now, output)
    said = f"{address_of(changed)}: {changed.desired_state.value} is wanted; it is {changed.observed_status.value}."
    print_result(output, _view(changed, now), said)
    return ExitCode.DONE


async def _waited(context: Context, asked: Workspace, waiting: Waiting) -> Workspace:
    """Return a workspace as it became, if that is to be waited for."""
    from lapse.cli.waiting import until_as_wanted

    return await until_as_wanted(context, asked, waiting.timeout) if waiting.wait else asked


def _outcome(found: Workspace, now: Ms, output: Output) -> int:
    """Tell what became of one that was waited for."""
    from lapse.workspaces.view import address_of

    address, failed = address_of(found), found.error_reason is not None
    said = f"{address} is {found.observed_status.value}."
    if failed:
        again = f"To try again: lapse workspaces start {found.name}"
        said = f"{address} has failed ({found.error_reason}): {found.error_message}. {again}"
    print_result(output, _view(found, now), said)
    return ExitCode.FAILED if failed else ExitCode.DONE


@_command("lapse workspaces ttl lab --standby 10m", "lapse workspaces ttl lab --standby 1h --archive 7d")
def ttl(
    name: Name,
    /,
    *,
    standby: StandbyTTL = None,
    archive: ArchiveTTL = None,
    flags: WorkspaceFlags = WorkspaceFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """Change the TTLs of a workspace; they count from its last access."""
    from lapse.cli.context import change_workspace
    from lapse.workspaces.view import address_of

    if standby is None and archive is None:
        raise NoTTLGivenError

    async def how(context: Context, found: Workspace) -> Workspace:
        return await (await context.workspaces()).set_ttls(found.id, standby=standby, archive=archive, now=context.now)

    changed, now = change_workspace(flags, name, how)
    idle, kept = _duration(changed.standby_ttl_seconds), _duration(changed.archive_ttl_seconds)
    said = f"{address_of(changed)}: stopped after {idle} idle, archived after {kept} in standby."
    print_result(output, _view(changed, now), said)
    return ExitCode.DONE


@_command(
    "lapse workspaces set lab --port 9001 --restart",
    "lapse workspaces set lab --owner alice --standby-ttl 1h --probe jupyter",
    "lapse workspaces set lab -- ./serve --verbose",
    name="set",
)
def set_workspace(  # noqa: PLR0913 - one per option, all of them named
    name: Name,
    /,
    *command: Annotated[
        str, Parameter(help="The command that it runs from its next start on, after --.", allow_leading_hyphen=True)
    ],
    port: Annotated[
        int | None, Parameter(metavar="N", help="The port that the program listens on from its next start on.")
    ] = None,
    owner: Annotated[str | None, Parameter(metavar="NAME", help="Its new owner.")] = None,
    standby_ttl: StandbyTTL = None,
    archive_ttl: ArchiveTTL = None,
    probe: Annotated[
        str | None,
        Parameter(
            metavar="PROBE", help="How to ask its program whether it is at work: jupyter, or a path; none: do not ask."
        ),
    ] = None,
    restart: Annotated[bool, Parameter(help="Stop and start it, if it runs.", show_default=False)] = False,
    timeout: Timeout = "60s",
    flags: WorkspaceFlags = WorkspaceFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """Change command, port, owner, TTLs or probe of a workspace.

    Its data stays. A program that runs goes on as it is until its next start;
    --restart stops it and starts it again, within --timeout each.
    """
    from lapse.cli.context import change_workspace
    from lapse.workspaces.model import Changes

    changes = Changes(
        owner=owner,
        command=command or None,
        port=port,
        standby_ttl_seconds=standby_ttl,
        archive_ttl_seconds=archive_ttl,
        probe="" if probe == "none" else probe,
    )
    if changes == Changes():
        raise NothingToSetError
    check_program(command)
    waiting = Waiting(wait=True, timeout=timeout)
    waiting.check()

    async def how(context: Context, found: Workspace) -> Workspace:
        changed = await _configure(context, found, changes)
        return await _restarted(context, changed, waiting) if restart else changed

    changed, now = change_workspace(flags, name, how)
    if restart:
        return _outcome(changed, now, output)
    print_result(output, _view(changed, now), _what_was_set(changed, changes))
    return ExitCode.DONE


async def _configure(context: Context, found: Workspace, changes: Changes) -> Workspace:
    from lapse.app.workspaces import node_of
    from lapse.workspaces import verbs

    node, store = node_of(context.settings), await context.workspaces()
    return await verbs.configure(store, found, changes, node=node, version=found.version, now=context.now)


async def _restarted(context: Context, changed: Workspace, waiting: Waiting) -> Workspace:
    """Stop what runs and start it again; one that does not run is left as it is."""
    from lapse.workspaces.model import ObservedStatus
    from lapse.workspaces.verbs import Verb, ask

    if changed.observed_status is not ObservedStatus.RUNNING:
        return changed
    for verb in (Verb.STOP, Verb.START):
        changed = await _waited(context, await ask(await context.workspaces(), verb, changed, now=context.now), waiting)
        if changed.error_reason is not None:
            break
    return changed


def _what_was_set(changed: Workspace, changes: Changes) -> str:
    from lapse.workspaces.model import ObservedStatus
    from lapse.workspaces.view import address_of

    said = f"Changed: {address_of(changed)}."
    if not changes.of_the_program or changed.observed_status is not ObservedStatus.RUNNING:
        return said
    return f"{said} Its program keeps running as it was started; command and port count from its next start."


@_command("lapse workspaces logs lab", "lapse workspaces logs lab --follow --tail 20")
def logs(
    name: Name,
    /,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], help="Go on until Ctrl-C.", show_default=False)] = False,
    tail: Annotated[int | None, Parameter(metavar="N", help="Only the last lines.")] = None,
    flags: WorkspaceFlags = WorkspaceFlags(),
) -> int:
    """Print what the program of a workspace wrote since its last start."""
    from lapse.app.workspaces import log_of
    from lapse.cli.context import in_context, workspace_name
    from lapse.cli.output import LOOK_SECONDS, print_log
    from lapse.workspaces.view import address_of

    if tail is not None and tail < 0:
        raise NumberError(name="--tail", given=tail, expected="0 or a number above 0")

    async def work(context: Context) -> tuple[Workspace, bool]:
        found = await (await context.workspaces()).by_name(workspace_name(name))
        pause = (lambda: context.machine.sleep(LOOK_SECONDS)) if follow else None
        return found, await print_log(log_of(context.settings, found), tail=tail, pause=pause)

    found, written = in_context(flags, work)
    if not written:
        message(f"{address_of(found)} has no output: it was not started yet.")
    return ExitCode.DONE


@_command("lapse workspaces delete lab", "lapse workspaces delete lab --yes --wait")
def delete(
    name: Name,
    /,
    *,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"], help="Do not ask.", show_default=False)] = False,
    waiting: Waiting = NO_WAIT,
    flags: WorkspaceFlags = WorkspaceFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """Delete a workspace with its data and its archive.

    On a terminal you are asked first. Its name is free at once; lapse up stops
    it and puts its data into the trash, for trash_ttl. A workspace that is
    held is not deleted.
    """
    from lapse.cli.context import change_workspace, who
    from lapse.cli.waiting import until_removed
    from lapse.workspaces.target import delete_by_person
    from lapse.workspaces.view import address_of

    waiting.check()

    async def how(context: Context, found: Workspace) -> Workspace:
        if not yes:
            _demand_yes(found)
        store, journal = await context.workspaces(), await context.journal()
        ttl = context.settings.trash_ttl
        deleted = await delete_by_person(store, journal, found, actor=who(), clock=context.machine, trash_ttl=ttl)
        if waiting.wait:
            await until_removed(context, deleted, waiting.timeout)
        return deleted

    gone, now = change_workspace(flags, name, how)
    print_result(output, _view(gone, now), f"Deleted: {address_of(gone)}. {_consequence(gone, waited=waiting.wait)}")
    return ExitCode.DONE


def _consequence(deleted: Workspace, *, waited: bool) -> str:
    """Say what becomes of the data of a workspace that was deleted."""
    if deleted.trash_until is None:
        return "Its data is removed." if waited else "lapse up removes its data."
    from lapse.core.timestamps import to_timestamp

    until = to_timestamp(deleted.trash_until * _MS)
    archived = "Its data is in the trash" if waited else "lapse up puts its data into the trash"
    return f"{archived}, where it stays until {until}."


def _demand_yes(found: Workspace) -> None:
    """Ask a person at a terminal; a program that calls has said what it wants."""
    from lapse.cli.input import says_yes
    from lapse.workspaces.view import address_of, in_words

    what = f"{address_of(found)} ({in_words(found)}, of {found.owner}) with its data and its archive"
    if not says_yes(f"Delete {what}?", unasked=True):
        raise NotDeletedError(address=address_of(found))


# --- opening ----------------------------------------------------------------------------------------------------------


@_command("lapse workspaces open lab", "lapse workspaces open lab --browser", name="open")
def open_workspace(
    name: Name,
    /,
    *,
    browser: Annotated[bool, Parameter(help="Open it in a browser, too.", show_default=False)] = False,
    flags: OpenWorkspaceFlags = OpenWorkspaceFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """Print an address that opens a workspace in a browser.

    It works once, within a minute. Opening a workspace starts it when it does
    not run.
    """
    from lapse.cli.context import in_context, workspace_name
    from lapse.engine.journal.port import AuditReason
    from lapse.workspaces.tickets import TICKET_SECONDS

    async def work(context: Context) -> str:
        found = await (await context.workspaces()).by_name(workspace_name(name))
        journal = await context.journal()
        url = await _ticketed(context, found)
        await _tell(journal, AuditReason.WORKSPACE_OPENED, found, context.now)
        return url

    url = in_context(flags, work)
    print_link(output, url, seconds=TICKET_SECONDS, within="a minute", browser=browser)
    return ExitCode.DONE


async def _ticketed(context: Context, workspace: Workspace) -> str:
    """Return the address of a workspace with a fresh ticket in it."""
    from lapse.app.workspaces import demand_shared_tickets, ticket_records, url_of
    from lapse.keys.aio import open_keys_async
    from lapse.workspaces.tickets import Tickets, ticket_url

    settings = context.settings
    demand_shared_tickets(settings, "Ask the HTTP API of lapse up instead, or name a store that both can reach")
    if not settings.proxy_port and settings.proxy_scheme == "http":
        raise ProxyPortUnknownError
    owner_id, _ = context.owner()
    async with open_keys_async(settings.keys_url, clock=context.machine, sweep=False) as keys:
        ticket = await Tickets(ticket_records(keys, clock=context.machine)).issue(workspace.id, owner_id)
    return ticket_url(url_of(settings, settings.proxy_port)(workspace.name), ticket)
