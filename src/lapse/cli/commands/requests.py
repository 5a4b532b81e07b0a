"""``lapse requests``: ask once for a capture or a restore, and see what became of it.

The commands work on the object store of the state folder, so they need no server; a running `lapse up` carries out what
they ask for and lets it lapse. Exit codes: 1 when a request that was waited for has failed or is not done in time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter, Token

from lapse.cli.flags import EndingFlags, StateFlags
from lapse.cli.output import (
    ExitCode,
    Output,
    OutputOption,
    message,
    print_document,
    print_result,
    print_table,
    print_text,
    print_views,
)
from lapse.cli.usage import commands_of
from lapse.cli.waiting import NO_WAIT, Timeout, Waiting
from lapse.core.errors import UsageError
from lapse.requests.api.kinds import CaptureMode

if TYPE_CHECKING:
    from lapse.cli.context import Context
    from lapse.cli.waiting import ObjectChange
    from lapse.requests.addresses import Located
    from lapse.requests.submission import Capture, CaptureManifests, Restore
    from lapse.requests.view import ObjectView

app = App(
    "requests",
    help="Capture and restore volumes and manifests; see what lapses when.",
    help_epilogue="An ADDRESS is KIND/NAMESPACE/NAME, as in vcr/default/nightly, or KIND/NAME\n"
    "where there is no namespace, as in keeper/ret-vcr-1.\n\n"
    "Kinds: vcr (volume capture), vrr (volume restore), mcr (manifest capture),\n"
    "csched (schedule), keeper, vsc (snapshot), mcp (checkpoint), pvc (claim), pv (volume).\n\n"
    "lapse up carries out what is asked for.",
    default_parameter=Parameter(negative=()),
)
manifests = App(
    "manifests",
    help="Read what a manifest capture has captured.",
    sort_key=100,  # behind the others
    default_parameter=Parameter(negative=()),
)
_command = commands_of(app)
_manifests_command = commands_of(manifests)


class TwoGoalsError(UsageError):
    """Two goals are given. Write either --until-ready or --until-gone."""


class ModeError(UsageError):
    """{given!r} is not a mode. Expected Snapshot or Detach."""


def _mode(_: type, tokens: tuple[Token, ...]) -> CaptureMode:
    # Not cyclopts' own, which offers the modes in a spelling that documents do not have.
    given = tokens[0].value
    for mode in CaptureMode:
        if given.lower() == mode.lower():
            return mode
    raise ModeError(given=given)


Mode = Annotated[
    CaptureMode,
    Parameter(
        metavar="MODE",
        help="Snapshot copies it; Detach takes the volume from its claim. [default: Snapshot]",
        converter=_mode,
        show_choices=False,
        show_default=False,
    ),
]
Keep = Annotated[
    str | None,
    Parameter(
        metavar="TIME",
        help="How long what is made is kept after the request is gone, such as 30d, up to artifact_ttl_max of lapse up;"
        " never keeps it until its keeper is deleted. [default: keeper_ttl]",
        show_default=False,
    ),
]
Name = Annotated[str, Parameter(help="Of the new request: lower-case letters, digits, - and .")]
ObjectAddress = Annotated[str, Parameter(name="ADDRESS", help="As in vcr/default/nightly.")]
Namespace = Annotated[str, Parameter(name=["--namespace", "-n"], metavar="NAME", help="The namespace.")]
EveryNamespace = Annotated[
    bool, Parameter(name=["--all-namespaces", "-A"], help="In all namespaces.", show_default=False)
]


@Parameter(name="*")
@dataclass(frozen=True)
class Scope:
    """Which namespaces to look at."""

    namespace: Namespace = "default"
    all_namespaces: EveryNamespace = False

    def chosen(self) -> str | None:
        """Return the namespace, None for all of them."""
        from lapse.requests.submission import check_namespace

        return None if self.all_namespaces else check_namespace(self.namespace)


DEFAULT_SCOPE: Final = Scope()
Kinds = Annotated[
    str, Parameter(name="KIND", help="vcr, vrr, mcr, csched, keeper, vsc, mcp, pv, pvc; requests, artifacts, claims.")
]


# --- asking -----------------------------------------------------------------------------------------------------------


@_command(
    "lapse requests capture nightly --directory data --wait",
    "lapse requests capture nightly --claim data --mode Detach",
    "lapse requests capture before-the-upgrade --claim data --keep 30d",
)
def capture(  # noqa: PLR0913 - one for each flag
    name: Name,
    /,
    *,
    directory: Annotated[str | None, Parameter(metavar="PATH", help="The directory to capture.")] = None,
    claim: Annotated[
        str | None,
        Parameter(metavar="NAME", help="A claim that exists; with --directory, the name of its claim."),
    ] = None,
    mode: Mode = CaptureMode.SNAPSHOT,
    keep: Keep = None,
    namespace: Namespace = "default",
    waiting: Waiting = NO_WAIT,
    flags: StateFlags = StateFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """Ask for a capture of a volume or a directory.

    A snapshot is a copy of the directory as it is now; it is kept for a while
    after the request is gone: for --keep, or for keeper_ttl of lapse up.
    """
    from lapse.requests.submission import Capture

    asked = Capture.checked(name, namespace=namespace, directory=directory, claim=claim, mode=mode, keep=keep)
    return _ask(asked, flags, output, waiting)


@_command(
    "lapse requests restore monday --from vcr/default/nightly --to data-monday --wait",
    "lapse requests restore monday --from snapshot-8b0c --claim data-monday",
)
def restore(
    name: Name,
    /,
    *,
    source: Annotated[
        str,
        Parameter(
            name="--from",
            metavar="SOURCE",
            help="The capture, as vcr/default/nightly, or the name of a snapshot or a detached volume.",
        ),
    ],
    to: Annotated[
        str | None, Parameter(metavar="PATH", help="A new directory; otherwise one in the state folder.")
    ] = None,
    claim: Annotated[
        str | None, Parameter(metavar="NAME", help="The new claim; otherwise named as the request.")
    ] = None,
    namespace: Namespace = "default",
    waiting: Waiting = NO_WAIT,
    flags: StateFlags = StateFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """Ask for a new claim and directory with captured data.

    What is restored is yours: it stays when request and snapshot are gone.
    """
    from lapse.requests.submission import Restore

    asked = Restore.checked(name, namespace=namespace, source=source, to=to, claim=claim)
    return _ask(asked, flags, output, waiting)


@_command(
    "lapse requests capture-manifests settings --target pvc/data --target v1:ConfigMap/settings --wait",
    "lapse requests capture-manifests settings --target v1:ConfigMap/settings --keep 30d",
)
def capture_manifests(
    name: Name,
    /,
    *,
    target: Annotated[
        list[str],
        Parameter(metavar="KIND/NAME", help="What to capture, in the namespace; give it several times for several."),
    ],
    keep: Keep = None,
    namespace: Namespace = "default",
    waiting: Waiting = NO_WAIT,
    flags: StateFlags = StateFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """Ask for a copy of the manifests of objects.

    The copy is kept for a while after the request is gone: for --keep, or
    for keeper_ttl of lapse up.
    """
    from lapse.requests.submission import CaptureManifests

    asked = CaptureManifests.checked(name, namespace=namespace, targets=target, keep=keep)
    return _ask(asked, flags, output, waiting)


def _ask(asked: Capture | Restore | CaptureManifests, flags: StateFlags, output: Output, waiting: Waiting) -> int:
    from lapse.cli.context import in_context
    from lapse.cli.waiting import until_ready
    from lapse.engine.view import to_json

    waiting.check()

    async def work(context: Context) -> tuple[Located, ObjectView, str | None]:
        from lapse.requests.api.kinds import VOLUME_RESTORE_REQUEST
        from lapse.requests.submission import restored_to

        place = await asked.ask(context.store)
        if not waiting.wait:
            return place, context.object_view(place.kind, await context.store.get(place.kind, place.key)), None
        view = await until_ready(context, place, waiting.timeout)
        directory = await restored_to(context.store, place) if place.kind is VOLUME_RESTORE_REQUEST else None
        return place, view, directory

    place, view, directory = in_context(flags, work)
    where = {"directory": directory} if directory else {}
    print_result(output, to_json(view) | where, _outcome(place, view, directory))
    return ExitCode.FAILED if view.ready is False else ExitCode.DONE


def _outcome(place: Located, view: ObjectView, directory: str | None) -> str:
    if view.ready is None:
        return f"{place} is asked for; lapse up carries it out. See lapse requests get {place}."
    if not view.ready:
        return f"{place} has failed ({view.reason}): {view.message or ''}"
    return f"{place} is ready: {view.message or ''}" + (f", which is {directory}" if directory else "")


# --- looking ----------------------------------------------------------------------------------------------------------


@_command(
    "lapse requests list",
    "lapse requests list vcr keeper --all-namespaces -o json",
    name="list",
)
def list_objects(
    *kind: Kinds,
    scope: Scope = DEFAULT_SCOPE,
    flags: StateFlags = StateFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """List requests, their keepers and their artifacts.

    Keepers and artifacts are listed with the namespace of the request that
    they were made for. EXPIRES tells when each one goes.
    """
    from lapse.cli.context import in_context
    from lapse.requests.addresses import find_kinds
    from lapse.requests.view import COLUMNS, read_views

    kinds, chosen = find_kinds(kind), scope.chosen()

    async def work(context: Context) -> tuple[list[ObjectView], int]:
        now = context.clock.wall_ns()
        return await read_views(context.store, kinds, chosen, now=now, rule=context.request_ttl), now

    found, now = in_context(flags, work)
    if output.for_programs:
        print_document(output, {"items": found})
    elif found:
        print_views(found, COLUMNS, now, styles={"True": "green", "False": "red"})
    else:
        message(f"There is nothing{'' if chosen is None else f' in the namespace {chosen}'}.")
    return ExitCode.DONE


@_command(
    "lapse requests get vcr/default/nightly",
    "lapse requests get keeper/ret-vcr-1 -o json",
)
def get(address: ObjectAddress, /, *, flags: StateFlags = StateFlags(), output: OutputOption = Output.TABLE) -> int:
    """Show one object with its keeper and artifact.

    With -o json it is the whole document.
    """
    from dataclasses import replace

    from lapse.cli.context import in_context
    from lapse.kube.resources import Document
    from lapse.requests.addresses import locate
    from lapse.requests.submission import or_lapsed
    from lapse.requests.view import detail_rows, typed

    place = locate(address)

    async def work(context: Context) -> Any:  # noqa: ANN401 - a document, or rows
        store, rule, now = context.store, context.request_ttl, context.clock.wall_ns()
        reading = store.get(replace(place.kind, type=Document), place.key)
        document = place.kind.body(await or_lapsed(store, place, reading, rule=rule, now=now))
        if output.for_programs:
            return document
        return await detail_rows(store, place, typed(place.kind, document), now=now, rule=rule)

    found = in_context(flags, work)
    if output.for_programs:
        print_document(output, found)
    else:
        print_table(("fact", "value"), found)
    return ExitCode.DONE


@_command(
    "lapse requests watch",
    "lapse requests watch --until-ready vcr/default/nightly --timeout 30s",
    "lapse requests watch --until-gone vcr/default/nightly --timeout 15m",
)
def watch(
    *kind: Kinds,
    until_ready: Annotated[
        str | None, Parameter(metavar="ADDRESS", help="Print nothing; end when this one is done or has failed.")
    ] = None,
    until_gone: Annotated[
        str | None, Parameter(metavar="ADDRESS", help="Print nothing; end when this one is gone.")
    ] = None,
    timeout: Timeout = "never",
    scope: Scope = DEFAULT_SCOPE,
    flags: StateFlags = StateFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """Print what happens, until Ctrl-C or --timeout.

    With -o json every line is a JSON document of its own.
    """
    from lapse.cli.waiting import timeout_seconds
    from lapse.requests.addresses import find_kinds, locate

    if until_ready is not None and until_gone is not None:
        raise TwoGoalsError
    seconds = timeout_seconds(timeout)
    if until_ready is not None:
        return _wait_until_ready(locate(until_ready), timeout, flags, output)
    if until_gone is not None:
        return _wait_until_gone(locate(until_gone), timeout, flags, output)
    return _print_changes(find_kinds(kind), scope.chosen(), seconds, flags=flags, output=output)


def _wait_until_ready(place: Located, timeout: str, flags: StateFlags, output: Output) -> int:
    from lapse.cli.context import in_context
    from lapse.cli.waiting import until_ready

    view = in_context(flags, lambda context: until_ready(context, place, timeout))
    print_result(output, view, _outcome(place, view, None))
    return ExitCode.DONE if view.ready else ExitCode.FAILED


def _wait_until_gone(place: Located, timeout: str, flags: StateFlags, output: Output) -> int:
    from lapse.cli.context import in_context
    from lapse.cli.waiting import until_gone

    was_there = in_context(flags, lambda context: until_gone(context, place, timeout))
    said = f"{place} is gone." if was_there else f"{place} is not there."
    print_result(output, {"address": str(place.address), "gone": True, "was_there": was_there}, said)
    return ExitCode.DONE


def _print_changes(
    kinds: Iterable[Any], namespace: str | None, seconds: float | None, *, flags: StateFlags, output: Output
) -> int:
    import asyncio
    from contextlib import suppress

    from lapse.cli.context import in_context
    from lapse.cli.waiting import follow
    from lapse.requests.view import SHOWN_KINDS, is_listed

    chosen = tuple(kinds)

    async def work(context: Context) -> None:
        printer = _Printer(context, output)

        def report(one: ObjectChange) -> None:
            if is_listed(one.kind, one.object, chosen, namespace):
                printer.report(one)

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await follow(context, chosen or SHOWN_KINDS, namespace, report)

    in_context(flags, work)
    return ExitCode.DONE


class _Printer:
    """Prints reports, each once: a change that would read as the line before it is left out."""

    def __init__(self, context: Context, output: Output) -> None:
        self._context, self._output = context, output
        self._last: dict[str, str] = {}

    def report(self, report: ObjectChange) -> None:
        """Print one line."""
        from lapse.core.timestamps import to_timestamp

        now, view = self._context.clock.wall_ns(), report.view
        if self._output.for_programs:
            body = report.kind.body(report.object)
            print_document(self._output, {"event": report.what.value, "summary": view, "object": body})
            return
        expires = f"expires {view.expiry(now)}" if view.expiry(now) else ""
        told = "" if report.what == "gone" else ", ".join(filter(None, (view.reason, view.message, expires)))
        known = str((view.ready, view.reason, view.message, view.expires_at, view.expires, view.held))
        if self._last.get(view.uid) != known or report.what in {"appeared", "gone"}:
            print_text(f"{to_timestamp(now)[11:]}  {report.what:8}  {view.place}  {told}".rstrip())
        self._last[view.uid] = known


# --- deleting ---------------------------------------------------------------------------------------------------------


@_command(
    "lapse requests delete vcr/default/nightly",
)
def delete(
    address: ObjectAddress, /, *, flags: EndingFlags = EndingFlags(), output: OutputOption = Output.TABLE
) -> int:
    """Delete a request before its time, or a claim.

    What a capture has made is kept for a while longer, by its keeper. What a
    restore has made stays, and so does the directory of a claim. A keeper can
    be deleted once its request is gone, or if it never goes by itself (--keep
    never), and what it keeps goes with it. What is held, or has made
    something that is held, is not deleted.
    """
    from lapse.cli.context import in_context
    from lapse.requests.addresses import locate
    from lapse.requests.expiry import demand_deletable

    place = locate(address)
    demand_deletable(place)
    said = in_context(flags, lambda context: delete_in_folder(context, place))
    print_result(output, {"address": str(place.address), "deleted": True}, f"{place} is deleted. {said}".rstrip())
    return ExitCode.DONE


async def delete_in_folder(context: Context, place: Located) -> str:
    """Delete an object of the state folder, and say what happens then to what it has made."""
    from lapse.app.trash import listed_trash
    from lapse.cli.context import who
    from lapse.requests.api.kinds import CAPTURE_SCHEDULE, OBJECT_KEEPER, REQUEST_KINDS
    from lapse.requests.expiry import delete_by_person
    from lapse.requests.schedules.view import read_consequence
    from lapse.requests.submission import demand_unfollowing, keeps_what_was_made, or_lapsed
    from lapse.requests.view import consequence, keeper_of

    store, journal, now = context.embedded, await context.journal(), context.clock.wall_ns()
    reading = store.get(place.kind, place.key)
    found: Any = await or_lapsed(store, place, reading, rule=context.request_ttl, now=now)
    if place.kind is OBJECT_KEEPER:
        await demand_unfollowing(store, place, found, rule=context.request_ttl, now=now)
    keeper = await keeper_of(store, place.kind, found.metadata.uid)
    keeps = keeper is not None and await keeps_what_was_made(store, place, keeper)
    said = ""
    if place.kind is CAPTURE_SCHEDULE:
        said = await read_consequence(store, found, now=now)
    elif place.kind in REQUEST_KINDS:
        said = consequence(keeper, keeps=keeps)
    await delete_by_person(
        store,
        place,
        found,
        keeper=keeper,
        holds=store,
        journal=journal,
        actor=who(),
        clock=context.clock,
        trash=listed_trash(context.settings, store, clock=context.clock),
    )
    return said


# --- manifests --------------------------------------------------------------------------------------------------------


@_manifests_command(
    "lapse requests manifests show mcp-0123456789abcdef",
    "lapse requests manifests show mcp-0123456789abcdef -o json",
)
def show(
    checkpoint: Annotated[str, Parameter(help="The name of a checkpoint, as lapse requests list mcp shows it.")],
    /,
    *,
    flags: StateFlags = StateFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """Print the manifests of a checkpoint, proven to be what was captured.

    Every chunk must be there, in order, with its checksum; otherwise nothing
    is printed. With -o json it is one JSON array of manifests.
    """
    from lapse.cli.context import in_context
    from lapse.requests.controllers.manifests import read_checkpoint
    from lapse.requests.submission import check_name

    name = check_name(checkpoint.removeprefix("mcp/"), "CHECKPOINT")
    found = in_context(flags, lambda context: read_checkpoint(context.store, name))
    if output.for_programs:
        print_document(output, found)
        return ExitCode.DONE
    rows = [
        (one.get("apiVersion", ""), one.get("kind", ""), meta.get("namespace") or "-", meta.get("name", ""))
        for one in found
        for meta in (one.get("metadata", {}),)
    ]
    print_table(("api version", "kind", "namespace", "name"), rows)
    message(f"{len(found)} manifest{'' if len(found) == 1 else 's'}, verified. Use -o json to see them whole.")
    return ExitCode.DONE


app.command(
    "lapse.cli.commands.schedules:app", name="schedule", help="Capture by the clock; keep the newest of each day."
)
app.command(manifests)
