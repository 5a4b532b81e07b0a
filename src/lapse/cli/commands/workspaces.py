"""``lapse workspaces``: programs that run while somebody uses them. Create, look, start, stop, archive, delete, open.

Each command asks the workspaces of a place (`lapse.cli.workspaces`): a store that this machine reaches, for which
nothing has to run, or a running Lapse. `logs` reads a file of this machine. What is asked for is carried out by the
``lapse up`` that runs the workspaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter, Token

from lapse.cli.flags import Flags, OpenWorkspaceFlags, WorkspaceFlags
from lapse.cli.input import Yes, confirm
from lapse.cli.output import (
    ExitCode,
    Output,
    OutputOption,
    message,
    print_document,
    print_link,
    print_page,
    print_result,
    print_table,
    print_text,
)
from lapse.cli.usage import NumberError, check_program, commands_of
from lapse.cli.waiting import NO_WAIT, Timeout, Waiting
from lapse.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lapse.cli.workspaces import WorkspacePlace
    from lapse.engine.view import ViewPage
    from lapse.workspaces.activity.port import Signal
    from lapse.workspaces.logs import LogPage
    from lapse.workspaces.model import Changes, WorkspaceId
    from lapse.workspaces.view import Opened, WorkspaceDetails, WorkspaceView

app = App(
    "workspaces",
    help="Create, open, stop and archive workspaces.",
    help_epilogue="A workspace is named NAME, or workspace/NAME. What is asked for is carried out by lapse up:\n"
    "the one that --server names, or that on the same store, workspaces.db in the state folder or --database-url.",
    default_parameter=Parameter(negative=()),
)
_LOOK_SECONDS: Final = 0.5
"""How often a log that is followed is looked at."""
_STYLES: Final = {"RUNNING": "green", "ERROR": "red"}
_command = commands_of(app)


class NothingToSetError(UsageError):
    """Say what to change: --port, --owner, --standby-ttl, --archive-ttl, --probe, or a command after --."""


class NoWaitingError(UsageError):
    """--wait cannot be given with --server: a server does not tell when the data of a deleted workspace is gone."""


class NoCommandError(UsageError):
    """Say what the workspace runs, after --, as in lapse workspaces create lab --port 9000 -- python3 serve.py."""


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


Name = Annotated[str, Parameter(name="NAME", help="A workspace: its name, or workspace/NAME.")]
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
        str | None,
        Parameter(
            metavar="NAME", help="Its owner; by default you, on a server whom the token is for.", show_default=False
        ),
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
    from lapse.cli.workspaces import ask_workspaces

    if not command:
        raise NoCommandError
    check_program(command)
    waiting.check()

    async def work(place: WorkspacePlace) -> WorkspaceView:
        made = await place.workspaces.create(
            _name(name) if name.startswith("workspace/") else name,
            command=command,
            port=port,
            owner=owner,
            standby_ttl_seconds=standby_ttl,
            archive_ttl_seconds=archive_ttl,
            probe=probe,
            start=not no_start,
        )
        return await _waited(place, made, waiting)

    made = ask_workspaces(flags, work)
    if waiting.wait:
        return _outcome(made, "Created", output, flags)
    then = "It starts when it is opened." if no_start else "lapse up starts it."
    print_result(output, made, f"Created: {made.address}. {then}")
    return ExitCode.DONE


def _name(given: str) -> str:
    from lapse.cli.context import workspace_name

    return workspace_name(given)


# --- looking ----------------------------------------------------------------------------------------------------------


@_command("lapse workspaces list", "lapse workspaces list --owner alice -o json", name="list")
def list_workspaces(
    *,
    owner: Annotated[str | None, Parameter(metavar="NAME", help="Only this owner's.")] = None,
    limit: Annotated[int, Parameter(metavar="N", help="How many to print at most; 0 for all.")] = 100,
    after: Annotated[str | None, Parameter(metavar="NEXT", help="The next of the page before.")] = None,
    flags: WorkspaceFlags = WorkspaceFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """List workspaces by name.

    NEXT tells which state each one goes to when nobody uses it, and when at the
    earliest: a connection keeps it longer. Connections are known here only with
    activity_url; otherwise only lapse up knows them.
    """
    from functools import partial

    from lapse.cli.remote import read_pages
    from lapse.cli.workspaces import ask_workspaces
    from lapse.workspaces.view import columns

    if limit < 0:
        raise NumberError(name="--limit", given=limit, expected="0 for all, or a number above 0")

    async def work(
        place: WorkspacePlace,
    ) -> tuple[ViewPage[WorkspaceDetails], Mapping[WorkspaceId, Signal], int]:
        page = await read_pages(partial(place.workspaces.list, owner=owner), limit=limit, after=after)
        return page, await place.signals(page.items), place.clock.wall_ns()

    page, signals, now = ask_workspaces(flags, work)
    none = "There are no such workspaces." if owner or after else "There are no workspaces."
    print_page(output, page, columns(page.items, signals), now, none=none, styles=_STYLES)
    return ExitCode.DONE


@_command("lapse workspaces show lab", "lapse workspaces show workspace/lab -o json")
def show(name: Name, /, *, flags: WorkspaceFlags = WorkspaceFlags(), output: OutputOption = Output.TABLE) -> int:
    """Show one workspace: wanted and observed state, when it lapses."""
    from lapse.cli.workspaces import ask_workspaces
    from lapse.workspaces.model import WorkspaceId
    from lapse.workspaces.view import detail_rows

    async def work(place: WorkspacePlace) -> tuple[WorkspaceDetails, Mapping[WorkspaceId, Signal], int]:
        found = await place.workspaces.show(_name(name))
        return found, await place.signals([found]), place.clock.wall_ns()

    found, signals, now = ask_workspaces(flags, work)
    if output.for_programs:
        print_document(output, found)
    else:
        rows = detail_rows(found, signals.get(WorkspaceId(found.id)), now)
        print_table(("fact", "value"), rows, styles=_STYLES)
    return ExitCode.DONE


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
    return _ask("start", name, "Started", waiting=waiting, flags=flags, output=output)


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
    return _ask("stop", name, "Stopped", waiting=waiting, flags=flags, output=output)


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
    return _ask("archive", name, "Archived", waiting=waiting, flags=flags, output=output)


def _ask(verb: str, name: str, done: str, *, waiting: Waiting, flags: WorkspaceFlags, output: Output) -> int:
    from lapse.cli.workspaces import ask_workspaces

    waiting.check()

    async def work(place: WorkspacePlace) -> WorkspaceView:
        return await _waited(place, await getattr(place.workspaces, verb)(_name(name)), waiting)

    changed = ask_workspaces(flags, work)
    if waiting.wait:
        return _outcome(changed, done, output, flags)
    said = f"Changed: {changed.address}. {changed.desired_state} is wanted; it is {changed.observed_status}."
    print_result(output, changed, said)
    return ExitCode.DONE


async def _waited(place: WorkspacePlace, asked: WorkspaceView, waiting: Waiting) -> WorkspaceView:
    """Return a workspace as it became, if that is to be waited for."""
    from lapse.cli.waiting import until_as_wanted

    return await until_as_wanted(place, asked, waiting.timeout) if waiting.wait else asked


def _outcome(found: WorkspaceView, done: str, output: Output, flags: Flags) -> int:
    """Tell what became of one that was waited for; ``done`` says what was done if it has not failed."""
    if found.error_reason is None:
        print_result(output, found, f"{done}: {found.address}. It is {found.observed_status}.")
        return ExitCode.DONE
    if output.for_programs:
        print_document(output, found)
    why = found.error_reason if found.error_message is None else f"{found.error_reason}: {found.error_message}"
    again = f"To try again{flags.command('workspaces start', found.name)}"
    message(f"{found.address} has failed ({why}). {again}")
    return ExitCode.FAILED


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
    from lapse.cli.workspaces import ask_workspaces
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

    async def work(place: WorkspacePlace) -> WorkspaceView:
        changed = await place.workspaces.set(_name(name), changes)
        return await _restarted(place, changed, waiting) if restart else changed

    changed = ask_workspaces(flags, work)
    if restart:
        return _outcome(changed, "Changed", output, flags)
    print_result(output, changed, _what_was_set(changed, changes))
    return ExitCode.DONE


async def _restarted(place: WorkspacePlace, changed: WorkspaceView, waiting: Waiting) -> WorkspaceView:
    """Stop what runs and start it again; one that does not run is left as it is."""
    from lapse.workspaces.model import ObservedStatus

    if changed.observed_status != ObservedStatus.RUNNING:
        return changed
    for verb in (place.workspaces.stop, place.workspaces.start):
        changed = await _waited(place, await verb(changed.name), waiting)
        if changed.error_reason is not None:
            break
    return changed


def _what_was_set(changed: WorkspaceView, changes: Changes) -> str:
    from lapse.core.duration import Duration
    from lapse.workspaces.model import ObservedStatus

    said = [f"Changed: {changed.address}."]
    if changes.standby_ttl_seconds is not None or changes.archive_ttl_seconds is not None:
        idle, kept = map(Duration.of_seconds, (changed.standby_ttl_seconds, changed.archive_ttl_seconds))
        said.append(f"It is stopped after {idle} idle, and archived after {kept} in standby.")
    if changes.of_the_program and changed.observed_status == ObservedStatus.RUNNING:
        said.append("Its program keeps running as it was started; command and port count from its next start.")
    return " ".join(said)


@_command("lapse workspaces logs lab", "lapse workspaces logs lab --follow --tail 20")
def logs(
    name: Name,
    /,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], help="Go on until Ctrl-C.", show_default=False)] = False,
    tail: Annotated[int | None, Parameter(metavar="N", help="Only the last lines.")] = None,
    after: Annotated[int, Parameter(metavar="N", help="Go on behind a page: its next.", show_default=False)] = 0,
    flags: WorkspaceFlags = WorkspaceFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """Print what the program of a workspace wrote.

    It is read from a file, on the machine of lapse up. With -o json each page
    of it is a document, on a line.
    """
    from lapse.cli.workspaces import ask_workspaces

    for option, given in (("--tail", tail or 0), ("--after", after)):
        if given < 0:
            raise NumberError(name=option, given=given, expected="0 or a number above 0")

    async def work(place: WorkspacePlace) -> bool:
        page = await place.workspaces.logs(_name(name), tail=tail, after=after)
        _tell_log(page, output)
        while True:
            if not (page.more or follow):
                return page.next > 0
            if not page.more:
                await place.clock.sleep(_LOOK_SECONDS)
            page = await place.workspaces.logs(_name(name), after=page.next)
            if page.text:
                _tell_log(page, output)

    if not ask_workspaces(flags, work) and not output.for_programs:
        message(f"workspace/{_name(name)} has no output: it was not started yet.")
    return ExitCode.DONE


def _tell_log(page: LogPage, output: Output) -> None:
    if output.for_programs:
        print_document(output, page)
    else:
        print_text(page.text, end="")


@_command("lapse workspaces delete lab", "lapse workspaces delete lab --yes --wait")
def delete(
    name: Name,
    /,
    *,
    yes: Yes = False,
    waiting: Waiting = NO_WAIT,
    flags: WorkspaceFlags = WorkspaceFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """Delete a workspace with its data and its archive.

    On a terminal you are asked first. Its name is free at once; lapse up stops
    it and puts its data into the trash, for trash_ttl. A workspace that is
    held is not deleted.
    """
    from lapse.cli.context import telling_of_gone
    from lapse.cli.waiting import until_removed
    from lapse.cli.workspaces import ask_workspaces

    waiting.check()

    async def work(place: WorkspacePlace) -> WorkspaceView:
        if waiting.wait and place.context is None:
            raise NoWaitingError
        seen = None if yes else await place.workspaces.show(_name(name))
        if seen is not None:
            what = f"{seen.address} ({seen.observed_status}, of {seen.owner}) with its data and its archive"
            confirm(f"Delete {what}", yes=yes)
        deleted = await place.workspaces.delete(_name(name), if_match=None if seen is None else seen.etag)
        if waiting.wait:
            await until_removed(place, deleted, waiting.timeout)
        return deleted

    with telling_of_gone(flags, f"workspace/{_name(name)}"):
        gone = ask_workspaces(flags, work)
    print_result(output, gone, f"Deleted: {gone.address}. {_consequence(gone, waited=waiting.wait)}")
    return ExitCode.DONE


def _consequence(deleted: WorkspaceView, *, waited: bool) -> str:
    """Say what becomes of the data of a workspace that was deleted."""
    if deleted.trash_until is None:
        return "Its data is removed." if waited else "lapse up removes its data."
    archived = "Its data is in the trash" if waited else "lapse up puts its data into the trash"
    return f"{archived}, where it stays until {deleted.trash_until}."


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
    from lapse.cli.workspaces import ask_workspaces

    async def work(place: WorkspacePlace) -> Opened:
        return await place.workspaces.open(_name(name))

    opened = ask_workspaces(flags, work)
    print_link(output, opened.url, expires_at=opened.expires_at, within="a minute", browser=browser)
    return ExitCode.DONE
