"""``lapse requests schedule``: captures again and again, and which of their artifacts stay.

The commands work on the object store of the state folder, on a cluster, or on a running Lapse that ``--server`` names;
`lapse up` or `lapse operator` makes the runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from lapse.cli.commands.requests import DEFAULT_SCOPE, Namespace, Scope, anywhere
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
    print_views,
)
from lapse.cli.paging import FIRST_PAGE, Paging
from lapse.cli.usage import commands_of

if TYPE_CHECKING:
    from lapse.cli.context import Context
    from lapse.engine.verbs.contract import SteeredView
    from lapse.engine.view import ViewPage
    from lapse.kube.resources import ObjectKey
    from lapse.requests.addresses import Located
    from lapse.requests.api.kinds import CaptureSchedule
    from lapse.requests.schedules.view import ScheduleDetails, ScheduleView
    from lapse.requests.submission import ScheduleChanges

app = App(
    "schedule",
    help="Capture by the clock; keep the newest of each day.",
    help_epilogue="A schedule is named NAME, or csched/NAMESPACE/NAME as lists print it.\n\n"
    "lapse up makes the runs, on a cluster lapse operator.",
    sort_key=90,  # behind the others
    default_parameter=Parameter(negative=()),
)
_command = commands_of(app)

Name = Annotated[str, Parameter(help="Of the schedule, or its address, as in csched/default/nightly.")]
_RIGHTS: Final = "get, list, create and patch on captureschedules"
_TRIES: Final = 5
"""How often a change or deletion is tried while others write."""


def _count(of: str) -> Parameter:
    return Parameter(metavar="N", help=f"How many artifacts stay: {of}.", show_default=False)


@_command(
    'lapse requests schedule create nightly --claim data --schedule "0 3 * * *" --keep-daily 7 --keep-weekly 4',
    'lapse requests schedule create settings --target v1:ConfigMap/settings --schedule "0 * * * *" --keep-last 24',
)
def create(  # noqa: PLR0913 - one for each flag
    name: Name,
    /,
    *,
    schedule: Annotated[
        str, Parameter(metavar="CRON", help="When: minute, hour, day of month, month, day of week, as in 0 3 * * *.")
    ],
    claim: Annotated[str | None, Parameter(metavar="NAME", help="The claim whose volume is captured.")] = None,
    target: Annotated[
        list[str] | None,
        Parameter(metavar="KIND/NAME", help="A manifest to capture; give it several times for several."),
    ] = None,
    time_zone: Annotated[
        str | None,
        Parameter(metavar="ZONE", help="Whose times, as in Europe/Berlin. [default: UTC]", show_default=False),
    ] = None,
    keep_last: Annotated[int | None, _count("of the last runs")] = None,
    keep_hourly: Annotated[int | None, _count("the newest of an hour")] = None,
    keep_daily: Annotated[int | None, _count("the newest of a day")] = None,
    keep_weekly: Annotated[int | None, _count("the newest of a week")] = None,
    keep_monthly: Annotated[int | None, _count("the newest of a month")] = None,
    starting_deadline: Annotated[
        str | None,
        Parameter(metavar="TIME", help="A missed run that is later than this is not made up.", show_default=False),
    ] = None,
    namespace: Namespace = "default",
    flags: PlaceFlags = PlaceFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Capture a volume or manifests by the clock.

    Each run is a request of its own. What it makes is kept as long as it has
    a place: it is one of the last, or the newest of its hour, day, week or
    month. Once the schedule is deleted, keeper_ttl counts.
    """
    from lapse.requests.submission import NewSchedule

    asked = NewSchedule.checked(
        name,
        namespace=namespace,
        schedule=schedule,
        time_zone=time_zone,
        claim=claim,
        targets=target or [],
        keep={
            "last": keep_last,
            "hourly": keep_hourly,
            "daily": keep_daily,
            "weekly": keep_weekly,
            "monthly": keep_monthly,
        },
        starting_deadline=starting_deadline,
    )

    async def work(context: Context) -> tuple[CaptureSchedule, int, str | None]:
        from lapse.requests.submission import missing_claim

        made = await asked.ask(context.store)
        return made, context.clock.wall_ns(), await missing_claim(context.store, made)

    made, now, missing = anywhere(flags, work, cluster=cluster, rights=_RIGHTS)
    return _tell(made, now, missing, output, said="Created", asks=bool(target) and (cluster or flags.names_cluster))


@_command(
    "lapse requests schedule edit nightly --keep-daily 14",
    'lapse requests schedule edit nightly --schedule "30 2 * * *" --time-zone Europe/Berlin',
)
def edit(  # noqa: PLR0913 - one for each flag
    name: Name,
    /,
    *,
    schedule: Annotated[str | None, Parameter(metavar="CRON", help="When, as in 0 3 * * *.")] = None,
    claim: Annotated[str | None, Parameter(metavar="NAME", help="The claim whose volume is captured.")] = None,
    target: Annotated[
        list[str] | None,
        Parameter(metavar="KIND/NAME", help="A manifest to capture, instead of all that were captured."),
    ] = None,
    time_zone: Annotated[str | None, Parameter(metavar="ZONE", help="Whose times, as in Europe/Berlin.")] = None,
    keep_last: Annotated[int | None, _count("of the last runs")] = None,
    keep_hourly: Annotated[int | None, _count("the newest of an hour")] = None,
    keep_daily: Annotated[int | None, _count("the newest of a day")] = None,
    keep_weekly: Annotated[int | None, _count("the newest of a week")] = None,
    keep_monthly: Annotated[int | None, _count("the newest of a month")] = None,
    starting_deadline: Annotated[
        str | None,
        Parameter(
            metavar="TIME",
            help="A missed run that is later than this is not made up; never: always.",
            show_default=False,
        ),
    ] = None,
    namespace: Namespace = "default",
    flags: PlaceFlags = PlaceFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Change a schedule; what is not given stays as it is.

    With less to keep, what has no place any more goes at once. With another
    schedule or time zone no run is made for a time before the change.
    """
    from lapse.requests.submission import ScheduleChanges

    key = _key(name, namespace)
    asked = ScheduleChanges.checked(
        schedule=schedule,
        time_zone=time_zone,
        claim=claim,
        targets=target or [],
        keep={
            "last": keep_last,
            "hourly": keep_hourly,
            "daily": keep_daily,
            "weekly": keep_weekly,
            "monthly": keep_monthly,
        },
        starting_deadline=starting_deadline,
    )

    async def work(context: Context) -> tuple[CaptureSchedule, int, str | None]:
        from lapse.requests.submission import missing_claim

        changed = await _edit(context, key, asked)
        return changed, context.clock.wall_ns(), await missing_claim(context.store, changed) if claim else None

    made, now, missing = anywhere(flags, work, cluster=cluster, rights=_RIGHTS)
    return _tell(made, now, missing, output, said="Changed", asks=bool(target) and (cluster or flags.names_cluster))


async def _edit(context: Context, key: ObjectKey, asked: ScheduleChanges) -> CaptureSchedule:
    from lapse.kube.errors import ConflictError

    for _ in range(_TRIES - 1):
        try:
            return await asked.make(context.store, await _read(context, key))
        except ConflictError:  # its status may have been written meanwhile
            continue
    return await asked.make(context.store, await _read(context, key))


def _tell(made: CaptureSchedule, now: int, missing: str | None, output: Output, *, said: str, asks: bool) -> int:
    """Print what became of a schedule; ``asks``: whether its operator may still refuse it."""
    from lapse.requests.schedules.view import schedule_view

    view = schedule_view(made, now=now)
    unless = ", if the operator makes scheduled captures of manifests (see schedule show)"
    asked = unless if asks and view.next_runs_at else ""
    print_result(output, view, f"{said}: {view.address}. {_next(view, now)}{asked}.")
    if missing is not None:
        message(f"warning: There is no {missing} now. No run is made until there is one.", style="yellow")
    return ExitCode.DONE


def _next(view: ScheduleView, now: int) -> str:
    from lapse.core.duration import short

    if view.suspended:
        return "It is suspended"
    if not view.next_runs_at:
        return f"It has no run to come: {(view.no_run or '').rstrip('.')}"
    return f"The next run is at {view.next_runs_at[0]}, in {short(view.next_runs_at[0] - now)}"


@_command("lapse requests schedule list", "lapse requests schedule list --all-namespaces -o json", name="list")
def list_schedules(
    *,
    scope: Scope = DEFAULT_SCOPE,
    paging: Paging = FIRST_PAGE,
    flags: PlaceFlags = PlaceFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """List schedules, with their last and next runs."""
    from lapse.requests.schedules.view import COLUMNS

    chosen = scope.chosen()
    paging.check()

    async def work(context: Context) -> tuple[list[ScheduleView], int]:
        return await _views(context, chosen), context.clock.wall_ns()

    found, now = anywhere(flags, work, cluster=cluster, rights=_RIGHTS)
    none = f"There are no schedules{'' if chosen is None else f' in the namespace {chosen}'}."
    styles = {"True": "green", "False": "red"}
    print_page(output, _page(found, paging), COLUMNS, now, none=none, styles=styles)
    return ExitCode.DONE


async def _views(context: Context, namespace: str | None) -> list[ScheduleView]:
    from functools import partial

    from lapse.cli.remote import read_pages
    from lapse.cli.remote_objects import RemoteContext
    from lapse.requests.api.kinds import CAPTURE_SCHEDULE
    from lapse.requests.schedules.view import schedule_view

    if isinstance(context, RemoteContext):
        return (await read_pages(partial(context.client.schedules.list, namespace=namespace), limit=0)).items
    found, now = await context.store.list(CAPTURE_SCHEDULE, namespace=namespace), context.clock.wall_ns()
    return [schedule_view(one, now=now) for one in found.items]


def _page(found: list[ScheduleView], paging: Paging) -> ViewPage[ScheduleView]:
    from lapse.core.address import AddressError
    from lapse.requests.addresses import locate
    from lapse.requests.api.kinds import CAPTURE_SCHEDULE

    def placed(text: str) -> tuple[str, str] | None:
        try:
            place = locate(text)
        except AddressError:
            return None
        return (place.key.namespace or "", place.key.name) if place.kind is CAPTURE_SCHEDULE else None

    return paging.page(found, place=lambda one: (one.namespace, one.name), name=lambda one: one.address, placed=placed)


@_command("lapse requests schedule show nightly", "lapse requests schedule show nightly --cluster -n shop")
def show(
    name: Name,
    /,
    *,
    namespace: Namespace = "default",
    flags: PlaceFlags = PlaceFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Show a schedule: its next runs, what is kept of it, and why."""
    from lapse.requests.schedules.view import RUN_COLUMNS, detail_rows

    key = _key(name, namespace)

    async def work(context: Context) -> tuple[ScheduleDetails, int]:
        return await _details(context, key), context.clock.wall_ns()

    details, now = anywhere(flags, work, cluster=cluster, rights=_RIGHTS)
    if output.for_programs:
        print_document(output, details)
    else:
        print_table(("fact", "value"), detail_rows(details, now))
        if details.runs:
            print_views(details.runs, RUN_COLUMNS, now)
    if details.runs is None:
        message(
            "You may not list its runs: that takes list on objectkeepers, volumesnapshotcontents and"
            " manifestcheckpoints in the whole cluster."
        )
    return ExitCode.DONE


async def _details(context: Context, key: ObjectKey) -> ScheduleDetails:
    from lapse.cli.remote_objects import RemoteContext
    from lapse.kube.errors import NotFoundError
    from lapse.requests.addresses import Located
    from lapse.requests.api.kinds import CAPTURE_SCHEDULE
    from lapse.requests.schedules.view import read_details
    from lapse.requests.submission import NoScheduleError

    if not isinstance(context, RemoteContext):
        return await read_details(context.store, await _read(context, key), now=context.clock.wall_ns())
    try:
        return await context.client.schedules.show(str(Located(CAPTURE_SCHEDULE, key)))
    except NotFoundError as error:
        raise NoScheduleError(schedule=key) from error


@_command("lapse requests schedule suspend nightly")
def suspend(
    name: Name,
    /,
    *,
    namespace: Namespace = "default",
    flags: PlaceFlags = PlaceFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Make no runs until it is resumed; what is kept stays."""
    return _set_suspend(_key(name, namespace), flags, output, cluster=cluster, suspended=True)


@_command("lapse requests schedule resume nightly")
def resume(
    name: Name,
    /,
    *,
    namespace: Namespace = "default",
    flags: PlaceFlags = PlaceFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Make runs again; those of the suspension are not made up."""
    return _set_suspend(_key(name, namespace), flags, output, cluster=cluster, suspended=False)


def _set_suspend(key: ObjectKey, flags: PlaceFlags, output: Output, *, cluster: bool, suspended: bool) -> int:
    async def work(context: Context) -> tuple[ScheduleView, int]:
        from lapse.requests.api.kinds import CAPTURE_SCHEDULE
        from lapse.requests.schedules.view import schedule_view

        now, found = context.clock.wall_ns(), await _read(context, key)
        changes = {"spec": {"suspend": suspended}}
        changed = await context.store.patch(CAPTURE_SCHEDULE, key, changes, uid=found.metadata.uid)
        return schedule_view(changed, now=now), now

    view, now = anywhere(flags, work, cluster=cluster, rights=_RIGHTS)
    said = f"Suspended: {view.address}." if suspended else f"Resumed: {view.address}. {_next(view, now)}."
    print_result(output, view, said)
    return ExitCode.DONE


@_command("lapse requests schedule delete nightly", "lapse requests schedule delete nightly --cluster -n shop")
def delete(
    name: Name,
    /,
    *,
    namespace: Namespace = "default",
    yes: Yes = False,
    flags: RunFlags = RunFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Delete a schedule, unless it is held.

    What it has kept stays for a while, which is told, and then goes. On a
    terminal it asks before.
    """
    from lapse.cli.context import telling_of_gone
    from lapse.requests.addresses import Located
    from lapse.requests.api.kinds import CAPTURE_SCHEDULE

    place = Located(CAPTURE_SCHEDULE, _key(name, namespace))
    confirm(f"Delete {place}", yes=yes)

    async def work(context: Context) -> SteeredView:
        from lapse.cli.commands.requests import delete_in_folder
        from lapse.cli.remote_objects import RemoteContext
        from lapse.requests.expiry import deleted_view

        if isinstance(context, RemoteContext):
            details = await _details(context, place.key)
            await context.client.schedules.delete(str(place))
            return deleted_view(place, details.object["metadata"]["uid"], _kept(details))
        return await (_delete_on_cluster(context, place) if context.is_cluster else delete_in_folder(context, place))

    with telling_of_gone(flags, str(place.address), cluster=cluster):
        done = anywhere(flags, work, cluster=cluster, rights="get and delete on captureschedules")
    print_result(output, done, f"Deleted: {place}. {done.says}")
    return ExitCode.DONE


def _kept(details: ScheduleDetails) -> str:
    """Say what a schedule of a server has kept; for how long, the keepers there say."""
    kept = details.kept
    if not kept:
        return "It has kept nothing."
    return f"It keeps {kept} artifact{'' if kept == 1 else 's'}, for as long as the keepers of its runs say."


async def _delete_on_cluster(context: Context, place: Located) -> SteeredView:
    """Delete a schedule with the rights of the person, and that very one, in the state in which it was not held."""
    from lapse.kube.errors import ConflictError
    from lapse.objects.holds.cluster import ListedDependants, listed_holds
    from lapse.requests.expiry import delete_by_person, deleted_view
    from lapse.requests.schedules.view import read_consequence

    # Lapse makes nothing that a schedule owns, and what it has kept stays. Whoever may delete one has the rights of a
    # capturer, which list little else: no kind is listed, and notes of held dependants count alone.
    dependants = ListedDependants(context.store, (), clock=context.machine)
    holds, journal = listed_holds(context.store, dependants), await context.journal()
    actor = (await context.caller()).name
    uid, tries = None, 0
    while True:
        found = await _read(context, place.key)
        uid, tries = uid or found.metadata.uid, tries + 1
        said = await read_consequence(context.store, found, now=context.clock.wall_ns())
        try:
            await delete_by_person(
                context.store, place, found, keeper=None, holds=holds, journal=journal, actor=actor, clock=context.clock
            )
        except ConflictError:  # its status may have been written meanwhile
            if found.metadata.uid != uid or tries == _TRIES:
                raise
            continue
        return deleted_view(place, found.metadata.uid, said)


async def _read(context: Context, key: ObjectKey) -> CaptureSchedule:
    """Return a schedule; that there is none is not the fault of the cluster."""
    from lapse.kube.errors import NotFoundError
    from lapse.requests.api.kinds import CAPTURE_SCHEDULE
    from lapse.requests.submission import NoScheduleError

    try:
        return await context.store.get(CAPTURE_SCHEDULE, key)
    except NotFoundError as error:
        raise NoScheduleError(schedule=key) from error


def _key(name: str, namespace: str) -> ObjectKey:
    """Return where a schedule is: NAME, or its address as lists and messages print it."""
    from lapse.kube.resources import ObjectKey
    from lapse.requests.addresses import locate_in
    from lapse.requests.api.kinds import CAPTURE_SCHEDULE
    from lapse.requests.submission import NotValidError, check_name, check_namespace

    if "/" not in name:
        return ObjectKey(check_namespace(namespace), check_name(name, "NAME"))
    place = locate_in(check_namespace(namespace), name)
    if place.kind is not CAPTURE_SCHEDULE:
        raise NotValidError(what=name, problem="expected the name of a schedule, or csched/NAMESPACE/NAME")
    return place.key
