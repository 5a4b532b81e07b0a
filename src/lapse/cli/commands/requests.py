"""``lapse requests``: ask once for a capture or a restore, and see what became of it.

The commands work on the object store of the state folder, on a cluster, or on a running Lapse that ``--server`` names;
`lapse up` or `lapse operator` carries out what they ask for and lets it lapse. Exit codes: 1 when a request that was
waited for has failed or is not done in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from cyclopts import App, Parameter, Token

from lapse.cli.context import InCluster
from lapse.cli.flags import PlaceFlags, RunFlags
from lapse.cli.input import Yes, confirm
from lapse.cli.output import (
    ExitCode,
    Output,
    OutputOption,
    message,
    print_document,
    print_page,
    print_result,
    print_table,
    print_text,
)
from lapse.cli.paging import FIRST_PAGE, Paging
from lapse.cli.usage import commands_of
from lapse.cli.waiting import NO_WAIT, Timeout, Waiting
from lapse.core.errors import UsageError
from lapse.requests.api.kinds import CaptureMode

if TYPE_CHECKING:
    from lapse.cli.context import Context, Work
    from lapse.cli.flags import Flags
    from lapse.cli.waiting import ObjectChange
    from lapse.engine.verbs.contract import SteeredView
    from lapse.engine.view import DetailRow, ViewPage
    from lapse.kube.resources import Json, Kind
    from lapse.requests.addresses import Located
    from lapse.requests.submission import Capture, CaptureManifests, Restore
    from lapse.requests.view import Manifests, ObjectDetails, ObjectView

    T = TypeVar("T")

app = App(
    "requests",
    help="Capture and restore volumes and manifests; see what lapses when.",
    help_epilogue="An ADDRESS is KIND/NAMESPACE/NAME, as in vcr/default/nightly, or KIND/NAME\n"
    "in the namespace that -n names, or where there is none, as in keeper/ret-vcr-1.\n"
    "A NAME alone is that of a request.\n\n"
    "Kinds: vcr (volume capture), vrr (volume restore), mcr (manifest capture),\n"
    "csched (schedule), keeper, vsc (snapshot), mcp (checkpoint), pvc (claim), pv (volume).\n\n"
    "lapse up carries out what is asked for, on a cluster lapse operator.",
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


class ServerDirectoryError(UsageError):
    """{option} names a directory of this machine, which a server may not have. Leave it out, and use --claim."""


class FollowedServerError(UsageError):
    """What happens on a server cannot be followed. Use --until-ready, --until-gone, or lapse requests list again."""


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
ObjectAddress = Annotated[
    str, Parameter(name="ADDRESS", help="As in vcr/default/nightly, or the NAME of a request in the namespace.")
]
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
    directory: Annotated[
        str | None, Parameter(metavar="PATH", help="The directory to capture; one of this machine.")
    ] = None,
    claim: Annotated[
        str | None,
        Parameter(metavar="NAME", help="A claim that exists; with --directory, the name of its claim."),
    ] = None,
    mode: Mode = CaptureMode.SNAPSHOT,
    keep: Keep = None,
    namespace: Namespace = "default",
    waiting: Waiting = NO_WAIT,
    flags: PlaceFlags = PlaceFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Ask for a capture of a volume or a directory.

    A snapshot is a copy of the directory as it is now; it is kept for a while
    after the request is gone: for --keep, or for keeper_ttl of lapse up.
    """
    from lapse.requests.submission import Capture

    asked = Capture.checked(name, namespace=namespace, directory=directory, claim=claim, mode=mode, keep=keep)
    return _ask(asked, flags, output, waiting, cluster=cluster)


@_command(
    "lapse requests restore monday --from vcr/default/nightly --to data-monday --wait",
    "lapse requests restore monday --from snapshot-8b0c --claim data-monday",
)
def restore(  # noqa: PLR0913 - one for each flag
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
        str | None,
        Parameter(metavar="PATH", help="A new directory of this machine; otherwise one in the state folder."),
    ] = None,
    claim: Annotated[
        str | None, Parameter(metavar="NAME", help="The new claim; otherwise named as the request.")
    ] = None,
    namespace: Namespace = "default",
    waiting: Waiting = NO_WAIT,
    flags: PlaceFlags = PlaceFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Ask for a new claim and directory with captured data.

    What is restored is yours: it stays when request and snapshot are gone.
    """
    from lapse.requests.submission import Restore

    asked = Restore.checked(name, namespace=namespace, source=source, to=to, claim=claim)
    return _ask(asked, flags, output, waiting, cluster=cluster)


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
    flags: PlaceFlags = PlaceFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Ask for a copy of the manifests of objects.

    The copy is kept for a while after the request is gone: for --keep, or
    for keeper_ttl of lapse up.
    """
    from lapse.requests.submission import CaptureManifests

    asked = CaptureManifests.checked(name, namespace=namespace, targets=target, keep=keep)
    return _ask(asked, flags, output, waiting, cluster=cluster)


def _ask(
    asked: Capture | Restore | CaptureManifests, flags: PlaceFlags, output: Output, waiting: Waiting, *, cluster: bool
) -> int:
    from lapse.cli.waiting import until_ready
    from lapse.engine.view import to_json

    waiting.check()

    async def work(context: Context) -> tuple[Located, ObjectDetails, str | None]:
        from lapse.requests.api.kinds import VOLUME_RESTORE_REQUEST
        from lapse.requests.submission import restored_to

        _demand_here(asked, context)
        place = await asked.ask(context.store)
        if not waiting.wait:
            return place, await _details(context, place), None
        await until_ready(context, place, waiting.timeout)
        directory = await restored_to(context.store, place) if place.kind is VOLUME_RESTORE_REQUEST else None
        return place, await _details(context, place), directory

    place, details, directory = anywhere(flags, work, cluster=cluster, rights="get, list and create on requests")
    where = {"directory": directory} if directory else {}
    return _tell(place, details, to_json(details) | where, output=output, directory=directory)


def _demand_here(asked: Capture | Restore | CaptureManifests, context: Context) -> None:
    """Refuse a directory of this machine where the objects are on another."""
    if (context.is_remote or context.is_cluster) and getattr(asked, "directory", None) is not None:
        raise ServerDirectoryError(option="--to" if hasattr(asked, "source") else "--directory")


def _tell(place: Located, view: ObjectView, document: Json, *, output: Output, directory: str | None = None) -> int:
    """Print what became of a request: that it has failed on stderr."""
    if view.ready is None:
        said = f"Created: {place}. It is carried out by lapse up or lapse operator; see lapse requests show {place}."
    else:
        told = ", which is ".join(filter(None, (view.message, directory)))
        said = f"Completed: {place}; {told}" if told else f"Completed: {place}."
    if view.ready is False and not output.for_programs:
        message(f"{place} has failed ({view.reason}): {view.message or ''}", style="red")
    else:
        print_result(output, document, said)
    return ExitCode.FAILED if view.ready is False else ExitCode.DONE


# --- looking ----------------------------------------------------------------------------------------------------------


@_command(
    "lapse requests list",
    "lapse requests list vcr keeper --all-namespaces -o json",
    "lapse requests list --server https://lapse.example.org",
    name="list",
)
def list_objects(
    *kind: Kinds,
    scope: Scope = DEFAULT_SCOPE,
    paging: Paging = FIRST_PAGE,
    flags: PlaceFlags = PlaceFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """List requests, their keepers and their artifacts.

    Keepers and artifacts are listed with the namespace of the request that
    they were made for. EXPIRES tells when each one goes.
    """
    from lapse.requests.addresses import find_kinds
    from lapse.requests.view import COLUMNS, with_held_keepers

    kinds, chosen = find_kinds(kind), scope.chosen()
    paging.check()

    async def work(context: Context) -> tuple[list[ObjectView], int]:
        return with_held_keepers(await _views(context, kinds, chosen)), context.clock.wall_ns()

    found, now = anywhere(flags, work, cluster=cluster, rights="list on what is listed")
    none = f"There is nothing{'' if chosen is None else f' in the namespace {chosen}'}."
    print_page(output, _page(found, kinds, paging), COLUMNS, now, none=none, styles={"True": "green", "False": "red"})
    return ExitCode.DONE


def _page(found: list[ObjectView], kinds: Sequence[Kind[Any]], paging: Paging) -> ViewPage[ObjectView]:
    """Return a page by kinds, as they were asked for, and by namespaces and names."""
    from lapse.core.address import AddressError
    from lapse.requests.addresses import locate
    from lapse.requests.view import SHOWN_KINDS

    order = {kind: at for at, kind in enumerate(kinds or SHOWN_KINDS)}

    def place(one: Located) -> tuple[int, str, str] | None:
        return None if one.kind not in order else (order[one.kind], one.key.namespace or "", one.key.name)

    def placed(text: str) -> tuple[int, str, str] | None:
        try:
            return place(locate(text))
        except AddressError:
            return None

    return paging.page(found, place=lambda one: place(one.place), name=lambda one: str(one.place), placed=placed)


async def _views(context: Context, kinds: Sequence[Kind[Any]], namespace: str | None) -> list[ObjectView]:
    """Return what a list shows; on a server, what that says of each."""
    from lapse.cli.remote_objects import RemoteContext
    from lapse.requests.view import SHOWN_KINDS, is_listed, read_views, typed

    if not isinstance(context, RemoteContext):
        now = context.clock.wall_ns()
        return await read_views(context.store, kinds, namespace, now=now, rule=context.request_ttl)
    found: list[ObjectView] = []
    for kind in kinds or SHOWN_KINDS:
        for one in await context.objects.all_details(kind, namespace if kind.namespaced else None):
            shown = namespace in {None, one.namespace} if one.object is None else None
            if shown or (one.object is not None and is_listed(kind, typed(kind, one.object), kinds, namespace)):
                found.append(_plain(one))
    return found


def _plain(details: ObjectDetails) -> ObjectView:
    from lapse.engine.view import fill
    from lapse.requests.view import ObjectView

    return fill(ObjectView, details)


@_command(
    "lapse requests show vcr/default/nightly",
    "lapse requests show nightly -n shop",
    "lapse requests show keeper/ret-vcr-1 -o json",
)
def show(
    address: ObjectAddress,
    /,
    *,
    namespace: Namespace = "default",
    flags: PlaceFlags = PlaceFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Show one object with its keeper and artifact.

    With -o json the whole document is there, as object.
    """
    from lapse.requests.view import detail_rows

    async def work(context: Context) -> tuple[ObjectDetails, list[DetailRow]]:
        place = await _find(context, address, namespace)
        details, rule, now = await _details(context, place), context.request_ttl, context.clock.wall_ns()
        if output.for_programs or details.object is None:
            return details, []
        return details, await detail_rows(context.store, place, details, now=now, rule=rule)

    details, rows = anywhere(flags, work, cluster=cluster, rights="get on what is shown, and on what it is related to")
    if output.for_programs:
        print_document(output, details)
    else:
        print_table(("fact", "value"), rows)
    return ExitCode.DONE


async def _find(context: Context, text: str, namespace: str) -> Located:
    """Return where an object is: by its address, or the one request of a name."""
    from lapse.requests.addresses import locate_in
    from lapse.requests.submission import check_namespace, find_request

    chosen = check_namespace(namespace)
    if "/" in text:
        return locate_in(chosen, text)
    return await find_request(context.store, text, chosen, rule=context.request_ttl, now=context.clock.wall_ns())


async def _details(context: Context, place: Located) -> ObjectDetails:
    """Return an object with its document; on a server, what that says of it."""
    from dataclasses import replace

    from lapse.cli.remote_objects import RemoteContext
    from lapse.kube.resources import Document
    from lapse.requests.submission import or_lapsed
    from lapse.requests.view import details_of

    store, rule, now = context.store, context.request_ttl, context.clock.wall_ns()
    if isinstance(context, RemoteContext):
        return await or_lapsed(store, place, context.objects.details(place), rule=rule, now=now)
    found = await or_lapsed(store, place, store.get(replace(place.kind, type=Document), place.key), rule=rule, now=now)
    return details_of(place.kind, place.kind.body(found), now=now, rule=rule)


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
    flags: PlaceFlags = PlaceFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Print what happens, until Ctrl-C or --timeout.

    With -o json every line is a JSON document of its own.
    """
    from lapse.cli.waiting import timeout_seconds
    from lapse.requests.addresses import find_kinds

    if until_ready is not None and until_gone is not None:
        raise TwoGoalsError
    seconds, chosen = timeout_seconds(timeout), scope.chosen()
    if until_ready is not None or until_gone is not None:
        waited = _wait_until_gone if until_ready is None else _wait_until_ready
        goal = until_ready or until_gone or ""
        return waited(goal, timeout=timeout, namespace=scope.namespace, flags=flags, output=output, cluster=cluster)
    return _print_changes(find_kinds(kind), chosen, seconds, flags=flags, output=output, cluster=cluster)


def _wait_until_ready(
    address: str, *, timeout: str, namespace: str, flags: PlaceFlags, output: Output, cluster: bool
) -> int:
    from lapse.cli.waiting import until_ready

    async def work(context: Context) -> tuple[Located, ObjectView]:
        place = await _find(context, address, namespace)
        await until_ready(context, place, timeout)
        return place, _plain(await _details(context, place))

    from lapse.engine.view import to_json

    place, view = anywhere(flags, work, cluster=cluster, rights="get, list and watch on requests")
    return _tell(place, view, to_json(view), output=output)


def _wait_until_gone(
    address: str, *, timeout: str, namespace: str, flags: PlaceFlags, output: Output, cluster: bool
) -> int:
    from lapse.cli.waiting import until_gone
    from lapse.requests.addresses import locate_in

    async def work(context: Context) -> tuple[Located, bool]:
        place = locate_in(namespace, address) if "/" in address else await _find(context, address, namespace)
        return place, await until_gone(context, place, timeout)

    place, was_there = anywhere(flags, work, cluster=cluster, rights="get, list and watch on requests")
    said = f"Gone: {place}." if was_there else f"Gone: {place}. It was not there."
    print_result(output, {"address": str(place.address), "gone": True, "was_there": was_there}, said)
    return ExitCode.DONE


def _print_changes(
    kinds: Sequence[Kind[Any]],
    namespace: str | None,
    seconds: float | None,
    *,
    flags: PlaceFlags,
    output: Output,
    cluster: bool,
) -> int:
    import asyncio
    from contextlib import suppress

    from lapse.cli.waiting import follow
    from lapse.requests.view import SHOWN_KINDS, is_listed

    async def work(context: Context) -> None:
        if context.is_remote:
            raise FollowedServerError
        printer = _Printer(context, output)

        def report(one: ObjectChange) -> None:
            if is_listed(one.kind, one.object, kinds, namespace):
                printer.report(one)

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await follow(context, kinds or SHOWN_KINDS, namespace, report)

    anywhere(flags, work, cluster=cluster, rights="list and watch on what is followed")
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


@_command("lapse requests delete vcr/default/nightly", "lapse requests delete nightly -n shop --yes")
def delete(
    address: ObjectAddress,
    /,
    *,
    namespace: Namespace = "default",
    yes: Yes = False,
    flags: RunFlags = RunFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Delete a request before its time, or a claim.

    What a capture has made is kept for a while longer, by its keeper. What a
    restore has made stays, and so does the directory of a claim. A keeper can
    be deleted once its request is gone, or if it never goes by itself (--keep
    never), and what it keeps goes with it. What is held, or has made
    something that is held, is not deleted. On a terminal it asks before.
    """
    from lapse.cli.context import telling_of_gone
    from lapse.requests.addresses import locate_in
    from lapse.requests.expiry import demand_deletable

    full = address
    if "/" in address:
        place = locate_in(namespace, address)
        demand_deletable(place)
        full = str(place.address)
    confirm(f"Delete {address}", yes=yes)

    async def work(context: Context) -> tuple[Located, SteeredView]:
        place = await _find(context, address, namespace)
        return place, await delete_anywhere(context, place)

    with telling_of_gone(flags, full, cluster=cluster):
        place, done = anywhere(flags, work, cluster=cluster, rights="get and delete on it")
    print_result(output, done, f"Deleted: {place}. {done.says or ''}".rstrip())
    return ExitCode.DONE


async def delete_anywhere(context: Context, place: Located) -> SteeredView:
    """Delete an object; say what happens then to what it has made, as far as that is known."""
    from lapse.cli.remote_objects import RemoteContext
    from lapse.engine.verbs.contract import DeleteRequest
    from lapse.requests.api.kinds import REQUEST_KINDS
    from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM
    from lapse.requests.expiry import deleted_view

    asked = DeleteRequest(address=str(place.address))
    if isinstance(context, RemoteContext):
        if place.kind in {*REQUEST_KINDS, PERSISTENT_VOLUME_CLAIM}:
            seen = await context.client.requests.show(str(place))
            await context.client.requests.delete(str(place))
            return deleted_view(place, seen.uid, "")
        return await context.client.delete(asked)
    if context.is_cluster:
        return await (await context.service()).delete(asked)
    return await delete_in_folder(context, place)


async def delete_in_folder(context: Context, place: Located) -> SteeredView:
    """Delete an object of the state folder; say what happens then to what it has made."""
    from lapse.app.trash import listed_trash
    from lapse.cli.context import who
    from lapse.requests.api.kinds import CAPTURE_SCHEDULE, OBJECT_KEEPER, REQUEST_KINDS
    from lapse.requests.expiry import delete_by_person, deleted_view
    from lapse.requests.schedules.view import read_consequence
    from lapse.requests.submission import demand_unfollowing, keeps_what_was_made, or_lapsed
    from lapse.requests.view import consequence, keeper_of

    store, journal, now = context.embedded, await context.journal(), context.clock.wall_ns()
    reading = store.get(place.kind, place.key)
    found: Any = await or_lapsed(store, place, reading, rule=context.request_ttl, now=now)
    if place.kind is OBJECT_KEEPER:
        await demand_unfollowing(store, place, found, holds=store, rule=context.request_ttl, now=now)
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
        trash=listed_trash(context.settings, store, dependants=store, clock=context.clock),
    )
    return deleted_view(place, found.metadata.uid, said)


# --- manifests --------------------------------------------------------------------------------------------------------


@_manifests_command(
    "lapse requests manifests show mcp-0123456789abcdef",
    "lapse requests manifests show mcp-0123456789abcdef -o json",
    name="show",
)
def show_manifests(
    checkpoint: Annotated[
        str, Parameter(help="The name or address of a checkpoint, as lapse requests list mcp shows it.")
    ],
    /,
    *,
    flags: PlaceFlags = PlaceFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Print the manifests of a checkpoint, proven to be what was captured.

    Every chunk must be there, in order, with its checksum; otherwise nothing
    is printed. With -o json the manifests are items.
    """
    from lapse.requests.addresses import locate
    from lapse.requests.api.kinds import MANIFEST_CHECKPOINT
    from lapse.requests.submission import NotValidError, check_name

    place = locate(checkpoint if "/" in checkpoint else f"mcp/{check_name(checkpoint, 'CHECKPOINT')}")
    if place.kind is not MANIFEST_CHECKPOINT:
        raise NotValidError(what=checkpoint, problem="expected the name of a checkpoint, or checkpoint/NAME")

    async def work(context: Context) -> Manifests:
        from lapse.cli.remote_objects import RemoteContext
        from lapse.requests.controllers.manifests import read_checkpoint
        from lapse.requests.view import Manifests

        if isinstance(context, RemoteContext):
            return await context.client.requests.manifests(place.key.name)
        return Manifests(place.key.name, await read_checkpoint(context.store, place.key.name))

    found = anywhere(flags, work, cluster=cluster, rights="get on manifestcheckpoints and list on their chunks")
    if output.for_programs:
        print_document(output, found)
        return ExitCode.DONE
    rows = [
        (one.get("apiVersion", ""), one.get("kind", ""), meta.get("namespace") or "-", meta.get("name", ""))
        for one in found.items
        for meta in (one.get("metadata", {}),)
    ]
    print_table(("api version", "kind", "namespace", "name"), rows)
    count = len(found.items)
    message(f"{count} manifest{'' if count == 1 else 's'}, verified. Use -o json to see them whole.")
    return ExitCode.DONE


# --- where ------------------------------------------------------------------------------------------------------------


def anywhere(flags: Flags, work: Work[T], *, cluster: bool, rights: str) -> T:
    """Do some work where the flags say: state folder, cluster or server."""
    from lapse.cli.context import in_context
    from lapse.cli.remote_objects import at_server

    return in_context(flags, work, remote=at_server(flags, work), cluster=cluster, rights=lambda _: rights)


app.command(
    "lapse.cli.commands.schedules:app", name="schedule", help="Capture by the clock; keep the newest of each day."
)
app.command(manifests)
