"""``lapse requests schedule``: captures again and again, and which of their artifacts stay.

The commands work on the object store of the state folder, or with --cluster on a cluster; a running `lapse up` or
`lapse operator` makes the runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from lapse.cli.context import InCluster, in_context
from lapse.cli.flags import EndingFlags, PlaceFlags
from lapse.cli.output import ExitCode, Output, OutputOption, message, print_json, print_result, print_table, print_views
from lapse.cli.usage import commands_of

if TYPE_CHECKING:
    from lapse.cli.context import Context
    from lapse.kube.resources import ObjectKey
    from lapse.requests.schedules.view import RunView, ScheduleView

app = App(
    "schedule",
    help="Capture by the clock; keep the newest of each day.",
    help_epilogue="lapse up makes the runs, on a cluster lapse operator.",
    sort_key=90,  # behind the others
    default_parameter=Parameter(negative=()),
)
_command = commands_of(app)

Name = Annotated[str, Parameter(help="Of the schedule.")]
Namespace = Annotated[str, Parameter(name=["--namespace", "-n"], metavar="NAME", help="The namespace.")]
_RIGHTS = "get, list, create and patch on captureschedules"


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

    async def work(context: Context) -> tuple[ScheduleView, int]:
        from lapse.requests.schedules.view import schedule_view

        now = context.clock.wall_ns()
        return schedule_view(await asked.ask(context.store), now=now), now

    view, now = in_context(flags, work, cluster=cluster, rights=lambda _: _RIGHTS)
    print_result(output, view, f"{view.address} is there; {_next(view, now)}.")
    return ExitCode.DONE


def _next(view: ScheduleView, now: int) -> str:
    from lapse.core.duration import short

    if view.suspended:
        return "it is suspended"
    return (
        f"the next run is at {view.next[0]}, in {short(view.next[0] - now)}" if view.next else "it has no run to come"
    )


@_command("lapse requests schedule list", "lapse requests schedule list --all-namespaces -o json", name="list")
def list_schedules(
    *,
    namespace: Namespace = "default",
    all_namespaces: Annotated[
        bool, Parameter(name=["--all-namespaces", "-A"], help="In all namespaces.", show_default=False)
    ] = False,
    flags: PlaceFlags = PlaceFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """List schedules, with their last and next runs."""
    from lapse.requests.schedules.view import COLUMNS, schedule_view
    from lapse.requests.submission import check_namespace

    chosen = None if all_namespaces else check_namespace(namespace)

    async def work(context: Context) -> tuple[list[ScheduleView], int]:
        from lapse.requests.api.kinds import CAPTURE_SCHEDULE

        now = context.clock.wall_ns()
        found = await context.store.list(CAPTURE_SCHEDULE, namespace=chosen)
        return [schedule_view(one, now=now) for one in found.items], now

    found, now = in_context(flags, work, cluster=cluster, rights=lambda _: _RIGHTS)
    if output is Output.JSON:
        print_json({"items": found})
    elif found:
        print_views(found, COLUMNS, now, styles={"True": "green", "False": "red"})
    else:
        message(f"There are no schedules{'' if chosen is None else f' in the namespace {chosen}'}.")
    return ExitCode.DONE


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
    from lapse.engine.view import to_json
    from lapse.requests.schedules.view import RUN_COLUMNS, detail_rows, read_runs, schedule_view

    key = _key(name, namespace)

    async def work(context: Context) -> tuple[ScheduleView, list[RunView] | None, int]:
        from lapse.kube.errors import ForbiddenError
        from lapse.requests.api.kinds import CAPTURE_SCHEDULE

        now = context.clock.wall_ns()
        found = await context.store.get(CAPTURE_SCHEDULE, key)
        runs: list[RunView] | None
        try:
            runs = await read_runs(context.store, found)
        except ForbiddenError:  # they belong to no namespace, and many people may list nothing outside of theirs
            runs = None
        return schedule_view(found, now=now), runs, now

    view, runs, now = in_context(flags, work, cluster=cluster, rights=lambda _: _RIGHTS)
    if output is Output.JSON:
        print_json(to_json(view) | {"runs": None if runs is None else [to_json(one) for one in runs]})
    else:
        print_table(("fact", "value"), detail_rows(view, now))
        if runs:
            print_views(runs, RUN_COLUMNS, now)
    if runs is None:
        message(
            "You may not list its runs: that takes list on objectkeepers, volumesnapshotcontents and"
            " manifestcheckpoints in the whole cluster."
        )
    return ExitCode.DONE


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

        now = context.clock.wall_ns()
        changed = await context.store.patch(CAPTURE_SCHEDULE, key, {"spec": {"suspend": suspended}})
        return schedule_view(changed, now=now), now

    view, now = in_context(flags, work, cluster=cluster, rights=lambda _: _RIGHTS)
    print_result(output, view, f"{view.address}: {_next(view, now)}.")
    return ExitCode.DONE


@_command("lapse requests schedule delete nightly")
def delete(
    name: Name,
    /,
    *,
    namespace: Namespace = "default",
    flags: EndingFlags = EndingFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """Delete a schedule of the state folder.

    What it has kept stays for keeper_ttl, and then goes. A schedule that is
    held is not deleted. On a cluster kubectl delete csched does it.
    """
    from lapse.cli.commands.requests import delete as delete_object

    return delete_object(f"csched/{namespace}/{_key(name, namespace).name}", flags=flags, output=output)


def _key(name: str, namespace: str) -> ObjectKey:
    from lapse.kube.resources import ObjectKey
    from lapse.requests.submission import check_name, check_namespace

    return ObjectKey(check_namespace(namespace), check_name(name, "NAME"))
