"""``lapse history``: records of what experiments did. List them, look at one, write one, end what exceeds the limits.

The commands work on the object store of the state folder, on a cluster, or on a running Lapse that ``--server`` names.
What they say about how long a record stays is the judgement of the policies that are in force there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter, Token

from lapse.cli.context import InCluster
from lapse.cli.flags import HISTORY_LIMITS, Flags, HistoryFlags, PruneFlags, RecordFlags
from lapse.cli.input import Yes, confirm, says_yes
from lapse.cli.output import (
    ExitCode,
    Output,
    OutputOption,
    message,
    print_document,
    print_page,
    print_result,
    print_table,
)
from lapse.cli.paging import FIRST_PAGE, Paging
from lapse.cli.retention_pass import DetailedExitcode, DryRun
from lapse.cli.usage import commands_of
from lapse.core.errors import LapseError, UsageError
from lapse.core.timestamps import from_timestamp
from lapse.history.api.kinds import ExecutionStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lapse.cli.context import Context
    from lapse.cli.retention_pass import Done
    from lapse.client import AsyncClient
    from lapse.engine.view import ViewPage
    from lapse.history.api.kinds import ChaosExperimentHistory, HistorySpec
    from lapse.history.policy.policy import Policy
    from lapse.history.view import JudgedRecord, RecordDetails, RecordView
    from lapse.kube.resources import Json, ObjectKey, ObjectMeta
    from lapse.settings import Settings

app = App(
    "history",
    help="Records of what experiments did, and how long they stay.",
    help_epilogue="A record is named NAME, or history/NAMESPACE/NAME as lapse history list -o json prints it.\n\n"
    "With --cluster, --kube-config or --kube-context these commands work on a cluster,\n"
    "with --server on a running Lapse, otherwise on the state folder of lapse up.",
    default_parameter=Parameter(negative=()),
)
_STYLES: Final = {"success": "green", "failure": "red", "now": "red", "with the next pass": "red"}
_command = commands_of(app)


class NoSuchRecordError(LapseError):
    """There is no record {name} in {place}; lapse history list shows the existing ones."""


class ExperimentNameError(UsageError):
    """{given!r} is not the name of an experiment. Expected NAMESPACE/NAME, as in shop/kill-pods."""


class StatusError(UsageError):
    """{given!r} is not a status; expected {known}."""


class RunTimeError(UsageError):
    """{flag} is {given!r}, which is not a time. Expected one such as 2026-01-31T12:00:00Z, with a time zone."""


class RecordSourceError(UsageError):
    """{problem}. Name a FILE, - for stdin, or say --experiment, --status and --start."""


class RecordNamespaceError(UsageError):
    """The record is in the namespace {given}, but records are kept in {expected}; see --history-namespace."""


class HistoryNamespaceError(LapseError):
    """There is no namespace {namespace} for records; run kubectl create namespace {namespace}, or name another."""


def _status(_: type, tokens: tuple[Token, ...]) -> ExecutionStatus:
    given = tokens[0].value
    try:
        return ExecutionStatus(given)
    except ValueError:
        *others, last = ExecutionStatus
        raise StatusError(given=given, known=f"{', '.join(others)} or {last}") from None


def _experiment(_: type, tokens: tuple[Token, ...]) -> tuple[str, str]:
    given = tokens[0].value
    namespace, slash, name = given.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise ExperimentNameError(given=given)
    return namespace, name


Status = Annotated[
    ExecutionStatus | None,
    Parameter(
        metavar="STATUS",
        help="success, failure, partial or cancelled.",
        converter=_status,
        show_choices=False,
    ),
]
RecordName = Annotated[str, Parameter(name="RECORD", help="The NAME of a record, or history/NAMESPACE/NAME.")]
Namespace = Annotated[
    str | None,
    Parameter(
        name=["--namespace", "-n"], metavar="NAME", help="The namespace of records; otherwise history_namespace."
    ),
]
Experiment = Annotated[
    tuple[str, str] | None,
    Parameter(metavar="NS/NAME", help="The experiment.", converter=_experiment, n_tokens=1),
]


# --- looking ----------------------------------------------------------------------------------------------------------


@_command(
    "lapse history list",
    "lapse history list --experiment shop/kill-pods --status failure",
    "lapse history list --history-ttl 24h --cluster -o json",
    name="list",
)
def list_records(  # noqa: PLR0913 - one per option
    *,
    experiment: Experiment = None,
    status: Status = None,
    experiment_namespace: Annotated[
        str | None, Parameter(metavar="NAME", help="Only of experiments in this namespace.")
    ] = None,
    namespace: Namespace = None,
    all_namespaces: Annotated[
        bool, Parameter(name=["--all-namespaces", "-A"], help="Records in all namespaces.", show_default=False)
    ] = False,
    paging: Paging = FIRST_PAGE,
    flags: HistoryFlags = HistoryFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """List records, the newest first.

    EXPIRES tells when each one goes by the policies that are in force; limits
    given as flags take the place of those of the history. A server lists them
    by name, because it reads them page by page.
    """
    from lapse.cli.context import in_context
    from lapse.history.view import COLUMNS

    paging.check()
    limits = _limits(flags)
    wanted = experiment or (experiment_namespace, None)

    async def work(context: Context) -> tuple[ViewPage[RecordView], int]:
        now = context.clock.wall_ns()
        within = None if all_namespaces else namespace or context.settings.history_namespace
        found = await _look(context, wanted, namespace=within)
        return _page(found, paging, namespace=experiment_namespace, status=status, now=now), now

    async def remote(client: AsyncClient) -> tuple[ViewPage[RecordView], int]:
        from lapse.cli.remote import read_pages
        from lapse.core.clock import SystemClock

        named = None if experiment is None else "/".join(experiment)
        page = partial(
            client.history.list,
            experiment=named,
            experiment_namespace=experiment_namespace,
            namespace=None if all_namespaces else namespace,
            status=status,
            **limits,
        )
        return await read_pages(page, limit=paging.limit, after=paging.after), SystemClock().wall_ns()

    found, now = in_context(flags, work, remote=remote, cluster=cluster, rights=_reading)
    is_some = experiment or experiment_namespace or namespace or status
    none = "There are no such records." if is_some else "There are no records."
    print_page(output, found, COLUMNS, now, none=none, styles=_STYLES)
    return ExitCode.DONE


def _page(
    found: list[JudgedRecord], paging: Paging, *, namespace: str | None, status: ExecutionStatus | None, now: int
) -> ViewPage[RecordView]:
    """Return a page of records, the newest first; ``next`` is the time and the name of the last one.

    ``namespace`` is that of their experiments.
    """
    from lapse.history.view import is_of

    views = [one.view(now) for one in found if is_of(one, namespace, None)]

    def placed(text: str) -> tuple[int, str] | None:
        moment, slash, name = text.partition("/")
        created = from_timestamp(moment) if moment else 0
        return (created, name) if slash and created is not None else None

    return paging.page(
        [one for one in views if status is None or one.status == status],
        place=lambda one: (one.created_at or 0, one.name),
        name=lambda one: f"{one.created_at or ''}/{one.name}",
        placed=placed,
        last_first=True,
    )


async def _look(
    context: Context, wanted: tuple[str | None, str | None], *, namespace: str | None
) -> list[JudgedRecord]:
    from lapse.core.clock import UnixNs
    from lapse.history.view import experiment_filter, is_of, look

    policies = await _policies(context)
    found = await look(
        context.store,
        policies,
        namespace=namespace,
        labels=experiment_filter(policies, *wanted),
        now=UnixNs(context.clock.wall_ns()),
    )
    return [one for one in found if is_of(one, *wanted)]


async def _policies(context: Context) -> list[Policy]:
    """Return what is in force, or what would be with the flags that were given."""
    from lapse.app.process import history_policy_document
    from lapse.history.view import about_records

    instead = [history_policy_document(context.settings)] if _is_asked(context) else []
    return about_records(await context.policies(instead=instead))


def _limits(flags: Flags) -> dict[str, Any]:
    """Return the limits of the command line as a server takes them; raises `SettingsError` for what is none."""
    if flags.given.keys().isdisjoint(HISTORY_LIMITS):
        return {}
    settings = flags.load().settings
    given = {key: getattr(settings, key) for key in HISTORY_LIMITS if key in flags.given}
    return {
        key.removeprefix("history_"): value if isinstance(value, int) else str(value) for key, value in given.items()
    }


def _is_asked(context: Context) -> bool:
    """Whether limits were given on the command line: they take the place of those that are in force."""
    return any(context.loaded.origins[name].layer == "flag" for name in HISTORY_LIMITS)


def _reading(settings: Settings) -> str:
    return f"get and list on chaosexperimenthistories in {settings.history_namespace}, list on retentionpolicies"


@_command(
    "lapse history show kill-pods-20260131120000-0123456789",
    "lapse history show history/chaos-system/kill-pods-20260131120000-0123456789",
)
def show(
    record: RecordName,
    /,
    *,
    namespace: Namespace = None,
    flags: HistoryFlags = HistoryFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Show one record, how long it stays, and why.

    What the run did is there as well; with -o json as the whole document.
    """
    from lapse.cli.context import in_context
    from lapse.history.view import detail_rows
    from lapse.kube.resources import Document

    named = _address(record) if "/" in record else None
    limits = _limits(flags)

    async def work(context: Context) -> tuple[RecordDetails, int]:
        judged, document = await _read(context, named or _key(record, namespace, context.settings))
        now = context.clock.wall_ns()
        return judged.details(document, now), now

    async def remote(client: AsyncClient) -> tuple[RecordDetails, int]:
        from lapse.core.clock import SystemClock
        from lapse.kube.errors import NotFoundError

        key = named or _key(record, namespace, flags.load().settings)
        try:
            return await client.history.show(key.namespace or "", key.name, **limits), SystemClock().wall_ns()
        except NotFoundError as error:
            raise NoSuchRecordError(name=key, place=client.server) from error

    details, now = in_context(flags, work, remote=remote, cluster=cluster, rights=_reading)
    if output.for_programs:
        print_document(output, details)
    else:
        print_table(("fact", "value"), detail_rows(details, Document(details.object).metadata, now))
    return ExitCode.DONE


def _key(name: str, namespace: str | None, settings: Settings) -> ObjectKey:
    """Return where the record of a name is."""
    from lapse.kube.resources import ObjectKey

    return ObjectKey(namespace or settings.history_namespace, name)


def _address(text: str) -> ObjectKey:
    from lapse.core.address import AddressError
    from lapse.domains import REGISTRY
    from lapse.kube.resources import ObjectKey

    address = REGISTRY.parse(text if text.count("/") > 1 else f"history/{text}")
    if address.kind != "history":
        raise AddressError(text=text, problem="it does not name a record, as history/NAMESPACE/NAME does")
    return ObjectKey(address.scope, address.name)


async def _read(context: Context, key: ObjectKey) -> tuple[JudgedRecord, Json]:
    from dataclasses import replace

    from lapse.core.clock import UnixNs
    from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY
    from lapse.history.view import look_at
    from lapse.kube.errors import NotFoundError
    from lapse.kube.resources import Document, Kind

    kind: Kind[Any] = CHAOS_EXPERIMENT_HISTORY
    try:
        found = await context.store.get(replace(kind, type=Document), key)
    except NotFoundError as error:
        raise NoSuchRecordError(name=key, place=context.name) from error
    policies = await _policies(context)
    judged = await look_at(context.store, found.metadata, policies, now=UnixNs(context.clock.wall_ns()))
    return judged, kind.body(found)


# --- writing ----------------------------------------------------------------------------------------------------------


@Parameter(name="*")
@dataclass(frozen=True)
class Run:
    """A run, as a person tells of it."""

    experiment: Experiment = None
    status: Status = None
    start: Annotated[str | None, Parameter(metavar="TIME", help="When it began, as in 2026-01-31T12:00:00Z.")] = None
    end: Annotated[str | None, Parameter(metavar="TIME", help="When it ended.")] = None
    message: Annotated[str | None, Parameter(metavar="TEXT", help="A message about the run.")] = None
    experiment_uid: Annotated[
        str | None, Parameter(metavar="UID", help="The uid of the experiment; another one may have had the same name.")
    ] = None

    @property
    def is_told(self) -> bool:
        """Whether anything was said."""
        return self != NO_RUN

    def document(self) -> Json:
        """Return it as a document."""
        if self.experiment is None or self.status is None or self.start is None:
            named = {"--experiment": self.experiment, "--status": self.status, "--start": self.start}
            missing = next(name for name, given in named.items() if given is None)
            raise RecordSourceError(problem=f"{missing} is missing")
        for flag, given in (("--start", self.start), ("--end", self.end)):
            if given is not None and from_timestamp(given) is None:
                raise RunTimeError(flag=flag, given=given)
        namespace, name = self.experiment
        ref = {"name": name, "namespace": namespace, "uid": self.experiment_uid}
        execution = {"startTime": self.start, "endTime": self.end, "status": str(self.status), "message": self.message}
        return {"experimentRef": _given(ref), "execution": _given(execution)}


def _given(values: dict[str, str | None]) -> Json:
    return {name: value for name, value in values.items() if value is not None}


NO_RUN: Final = Run()


@_command(
    "lapse history record run.yaml",
    "lapse history record - < run.json",
    "lapse history record --experiment shop/kill-pods --status success --start 2026-01-31T12:00:00Z",
)
def record(
    file: Annotated[
        str | None,
        Parameter(
            help="YAML or JSON: a ChaosExperimentHistory, or its spec alone; - is stdin.", allow_leading_hyphen=True
        ),
    ] = None,
    /,
    *,
    run: Run = NO_RUN,
    flags: RecordFlags = RecordFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Write the record of a run that has ended.

    The same run, which is the same document, is recorded once: a second
    attempt finds the first record and leaves it as it is.
    A name, labels and annotations of the document are kept, so a hold in it
    counts from the beginning.
    """
    from lapse.cli.context import in_context
    from lapse.cli.input import read_file

    if (file is None) == (not run.is_told):
        raise RecordSourceError(problem="A file and flags are given" if run.is_told else "Nothing is given")
    documents = [run.document()] if file is None else read_file(file)
    specs = [_spec(one) for one in documents]
    done: list[dict[str, Any]] = []

    async def work(context: Context) -> None:
        async for made, is_new in _write(context, specs):
            done.append(_written(made.metadata.namespace, made.metadata.name, new=is_new))

    async def remote(client: AsyncClient) -> None:
        for one in documents:
            made = await client.history.record(_whole(one))
            done.append(_written(made.namespace, made.name, new=made.new))

    try:
        in_context(flags, work, remote=remote, cluster=cluster, rights=_writing)
    except LapseError as error:
        if not done:
            raise
        message(f"lapse: {error}", style="red")
    _tell(done, output)
    return ExitCode.DONE if len(done) == len(specs) else ExitCode.PARTLY


async def _write(
    context: Context, specs: list[tuple[HistorySpec, ObjectMeta]]
) -> AsyncIterator[tuple[ChaosExperimentHistory, bool]]:
    from lapse.history.records import write_record
    from lapse.kube.errors import NotFoundError

    namespace = context.settings.history_namespace
    for _, given in specs:
        if given.namespace not in {None, namespace}:
            raise RecordNamespaceError(given=given.namespace, expected=namespace)
    for spec, given in specs:
        try:
            yield await write_record(context.store, spec, namespace=namespace, given=given)
        except NotFoundError as error:
            raise HistoryNamespaceError(namespace=namespace) from error


def _written(namespace: str | None, name: str, *, new: bool) -> dict[str, Any]:
    return {"address": f"history/{namespace}/{name}", "name": name, "new": new}


def _writing(settings: Settings) -> str:
    return f"create and get on chaosexperimenthistories in {settings.history_namespace}"


def _spec(document: Any) -> tuple[HistorySpec, ObjectMeta]:  # noqa: ANN401 - whatever a file holds
    """Return what is to be recorded, and the metadata that the document has."""
    from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY as KIND
    from lapse.history.policy.documents import DocumentError, problems_of

    whole = _whole(document)
    problems = list(problems_of(KIND, whole, named=False))
    if problems:
        raise DocumentError(document="The record", problem="; ".join(map(str, problems)))
    found = KIND.convert({**whole, "metadata": whole.get("metadata") or {}})
    return found.spec, found.metadata


def _whole(document: Any) -> Any:  # noqa: ANN401 - whatever a file holds
    """Return a document of which only the spec may have been given."""
    from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY as KIND

    is_spec = isinstance(document, dict) and "experimentRef" in document
    return KIND.body({"metadata": {}, "spec": document}) if is_spec else document


def _tell(done: list[dict[str, Any]], output: Output) -> None:
    from lapse.engine.view import ViewPage

    if output.for_programs:
        print_document(output, done[0] if len(done) == 1 else ViewPage(done, None))
        return
    for one in done:
        said = "" if one["new"] else " It was recorded before, and is left as it is."
        print_result(output, one, f"Recorded: {one['address']}.{said}")


# --- ending -----------------------------------------------------------------------------------------------------------


@_command(
    "lapse history prune --dry-run",
    "lapse history prune --yes",
    "lapse history prune --history-ttl 2160h --history-keep-last-success 1 --dry-run",
)
def prune(
    *,
    dry_run: DryRun = False,
    yes: Annotated[
        bool,
        Parameter(
            name=["--yes", "-y"],
            help="Do not ask, also if no pass has ever deleted by the default TTL.",
            show_default=False,
        ),
    ] = False,
    detailed_exitcode: DetailedExitcode = False,
    flags: PruneFlags = PruneFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """End the records that are too old or too many, now.

    Lists what goes, by the policy of the history that is in force; limits
    given as flags take its place, this time. All other policies protect what
    they keep, what is held stays, and nothing goes while history is frozen
    or its deletion budget is spent. If history_ttl is not set and no pass has
    ever deleted by its default, it lists what would be deleted and asks.
    """
    from lapse.cli.context import in_context
    from lapse.cli.retention_pass import finish, pass_on_server, pass_over
    from lapse.history.policy.default_policy import POLICY_NAME

    limits = _limits(flags)

    async def work(context: Context, *, sure: bool) -> Done:
        from lapse.app.process import history_policy_document

        instead = [history_policy_document(context.settings)] if _is_asked(context) else []
        return await pass_over(context, only={POLICY_NAME}, instead=instead, dry_run=dry_run, yes=sure)

    def run(*, sure: bool) -> Done:
        return in_context(
            flags,
            partial(work, sure=sure),
            remote=lambda client: pass_on_server(partial(client.history.prune, **limits), dry_run=dry_run, yes=sure),
            cluster=cluster,
            rights=_ending,
        )

    done = run(sure=yes)
    code = finish(done, output, pending=detailed_exitcode)
    if not done.waits_for_yes or not says_yes(f"Delete {len(done.report.items)} of these records now?", unasked=False):
        return code
    return finish(run(sure=True), output, pending=detailed_exitcode)


@_command(
    "lapse history delete kill-pods-20260131120000-0123456789",
    "lapse history delete history/chaos-system/kill-pods-20260131120000-0123456789 --yes",
)
def delete(
    record: RecordName,
    /,
    *,
    namespace: Namespace = None,
    yes: Yes = False,
    flags: RecordFlags = RecordFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Delete a record now, unless it is held.

    On a terminal it asks before. lapse undo brings it back, as long as it
    lies in the trash.
    """
    from lapse.cli.context import ask
    from lapse.core.address import Address
    from lapse.engine.verbs.contract import DeleteRequest

    key = _address(record) if "/" in record else _key(record, namespace, flags.load().settings)
    address = str(Address("history", key.namespace, key.name))
    confirm(f"Delete {address}", yes=yes)
    done = ask(flags, lambda verbs: verbs.delete(DeleteRequest(address=address)), cluster=cluster)
    said = f"Deleted: {done.address}. {done.says or ''}".rstrip()
    print_result(output, done, said)
    return ExitCode.DONE


def _ending(settings: Settings) -> str:
    records = f"list and delete on chaosexperimenthistories in {settings.history_namespace}"
    return f"{records}, list on retentionpolicies and on every kind whose holds keep its owners"
