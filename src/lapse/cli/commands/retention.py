"""``lapse retention``: policies about how many objects of any kind stay, and how long.

``list`` and ``show`` read what the last passes wrote; ``run`` is a pass, now; ``lint`` and ``rbac`` read files and
touch nothing. Policies are made and removed by kubectl, or stand in the settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter

from lapse.cli.context import InCluster
from lapse.cli.flags import (
    GrantFlags,
    LintFlags,
    PlaceFlags,
    RunFlags,
)
from lapse.cli.output import (
    ExitCode,
    Output,
    OutputOption,
    message,
    print_document,
    print_page,
    print_table,
    print_text,
)
from lapse.cli.paging import FIRST_PAGE, Paging
from lapse.cli.retention_pass import DetailedExitcode, DryRun
from lapse.cli.usage import commands_of
from lapse.core.errors import LapseError, UsageError

if TYPE_CHECKING:
    from lapse.cli.context import Context
    from lapse.cli.retention_pass import Done
    from lapse.client import AsyncClient
    from lapse.history.api.kinds import RetentionPolicy
    from lapse.history.policy.lint import Finding
    from lapse.history.policy.policy import Policy
    from lapse.history.view import PolicyView
    from lapse.kube.resources import Kind

app = App(
    "retention",
    help="Limit the age and the number of objects of any kind, by policies.",
    help_epilogue="A POLICY is the name of one, or a file with RetentionPolicy documents, YAML or JSON;\n"
    "- is stdin. Policies stand in retention_policies of the settings, or are made and\n"
    "deleted on a cluster by kubectl: there is no create and no delete here.",
    default_parameter=Parameter(negative=()),
)
_STYLES: Final = {"error": "red", "warning": "yellow", "True": "green", "False": "red"}
Files = Annotated[
    str,
    Parameter(name="POLICY", help="Files with RetentionPolicy documents; - is stdin.", allow_leading_hyphen=True),
]
Policies = Annotated[
    str,
    Parameter(
        name="POLICY", help="Names of policies, or files with RetentionPolicy documents.", allow_leading_hyphen=True
    ),
]
_command = commands_of(app)


class NoFileError(UsageError):
    """No file is named. Name the files to look at, or - for stdin."""


class SameNameError(UsageError):
    """Two policies are called {name}. Give each a name of its own."""


class PolicyNotStoredError(LapseError):
    """There is no retention policy {name} in {place}; lapse retention list shows the existing ones."""


class ServerFileError(UsageError):
    """{file} is a file, and a server runs the policies that it has. Name one of them, as lapse retention list does."""


class SeveralPoliciesError(UsageError):
    """{file} holds {count} policies, and one is shown. lapse retention list {file} lists them."""


def _read_policies(files: Sequence[str]) -> list[tuple[RetentionPolicy, Policy]]:
    """Return the policies of files; raises a usage error for one that cannot be used, and when there is no file."""
    from lapse.cli.input import read_files
    from lapse.history.api.kinds import RETENTION_POLICY
    from lapse.history.policy.documents import read_document
    from lapse.history.policy.policy import Policy

    if not files:
        raise NoFileError
    documents = [read_document(RETENTION_POLICY, one) for one in read_files(files)]
    return [(one, Policy.read(one)) for one in documents]


# --- passes -----------------------------------------------------------------------------------------------------------


@_command(
    "lapse retention run old-jobs.yaml --dry-run --cluster",
    "lapse retention run old-jobs --server https://lapse.example.org",
)
def run(
    *policy: Policies,
    dry_run: DryRun = False,
    detailed_exitcode: DetailedExitcode = False,
    flags: RunFlags = RunFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Run policies once, now.

    Lists what they end. The policies of files need not be stored; stored ones
    protect what they keep. A policy with dryRun, which is true until it is
    set to false, ends nothing. A server runs the policies that it has.
    """
    from lapse.cli.context import in_context
    from lapse.cli.retention_pass import finish, pass_over

    files, stored = _split(policy)
    documents = [one for one, _ in _read_policies(files)] if files or not stored else []
    names = [*(one.metadata.name for one in documents), *stored]
    if len(set(names)) < len(names):
        raise SameNameError(name=next(name for name in names if names.count(name) > 1))

    async def work(context: Context) -> Done:
        await _demand_in_force(context, stored)
        # A file is a person's own choice; a stored policy may be one that nobody has chosen yet.
        return await pass_over(context, only=names, instead=documents, dry_run=dry_run, yes=not stored)

    async def remote(client: AsyncClient) -> Done:
        if files:
            raise ServerFileError(file="stdin" if files[0] == "-" else files[0])
        return await _run_on_server(client, stored, dry_run=dry_run)

    kinds = ", ".join(sorted({one.spec.selector.kind for one in documents})) or "objects"
    rights = (
        f"list and delete on what the policies select ({kinds}), list on retentionpolicies and on every kind whose"
        " holds keep its owners"
    )
    done = in_context(flags, work, remote=remote, cluster=cluster, rights=lambda _: rights)
    return finish(done, output, pending=detailed_exitcode)


async def _demand_in_force(context: Context, names: Sequence[str]) -> None:
    found = {one.metadata.name for one in await _in_force(context)} if names else set()
    for name in names:
        if name not in found:
            raise PolicyNotStoredError(name=name, place=context.name)


async def _run_on_server(client: AsyncClient, names: Sequence[str], *, dry_run: bool) -> Done:
    """Run policies of a server, one after the other."""
    from functools import partial

    from lapse.cli.retention_pass import Done, pass_on_server
    from lapse.history.view import PassView

    runs = [partial(client.retention.run, name) for name in names]
    passes = [await pass_on_server(run, dry_run=dry_run, yes=False) for run in runs]
    items = [item for one in passes for item in one.report.items]
    report = PassView(items, [result for one in passes for result in one.report.policies])
    return Done(report, dry_run, waits_for_yes=any(one.waits_for_yes for one in passes))


def _split(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return which of what was given are files, and which are names of policies, which may be written as addresses."""
    from pathlib import Path

    from lapse.history.api.kinds import RETENTION_POLICY
    from lapse.objects.metadata_rules import name_problems

    address = f"{RETENTION_POLICY.full_name}/"

    def is_file(one: str) -> bool:
        looks_so = one.endswith((".yaml", ".yml", ".json")) or any(name_problems(one))
        return one == "-" or Path(one).is_file() or (looks_so and not one.startswith(address))

    files = [one for one in given if is_file(one)]
    return files, [one.removeprefix(address) for one in given if one not in files]


# --- looking ----------------------------------------------------------------------------------------------------------


@_command(
    "lapse retention list",
    "lapse retention list policies.yaml --cluster",
    name="list",
)
def list_policies(
    *policy: Policies,
    paging: Paging = FIRST_PAGE,
    flags: PlaceFlags = PlaceFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """List policies, with their last and next passes.

    All of them, or those that are named. The policies of the settings are
    among them, also before a process has run with them.
    """
    from lapse.history.view import POLICY_COLUMNS

    paging.check()
    files, names = _split(policy)
    names += [one.metadata.name for one, _ in _read_policies(files)] if files else []
    found, now = _look(flags, names, cluster=cluster)
    page = paging.page(found, place=lambda one: one.name, name=lambda one: one.name, placed=str)
    print_page(output, page, POLICY_COLUMNS, now, none="There are no policies.", styles=_STYLES)
    return ExitCode.DONE


@_command("lapse retention show history", "lapse retention show old-jobs --cluster")
def show(
    policy: Annotated[str, Parameter(help="The name of a policy, or a file with one.")],
    /,
    *,
    flags: PlaceFlags = PlaceFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Show a policy, and what its last pass did."""
    from lapse.history.api.kinds import RETENTION_POLICY
    from lapse.history.view import policy_rows

    files, names = _split([policy])
    names += [one.metadata.name for one, _ in _read_policies(files)] if files else []
    if len(names) > 1:
        raise SeveralPoliciesError(file=policy, count=len(names))
    (view,), now = _look(flags, names, cluster=cluster)
    if output.for_programs:
        print_document(output, view)
    else:
        print_table(("fact", "value"), policy_rows(RETENTION_POLICY.convert(view.object), now))
    return ExitCode.DONE


def _look(flags: PlaceFlags, names: Sequence[str], *, cluster: bool) -> tuple[list[PolicyView], int]:
    """Return the policies of these names, without names all of them; raises `PolicyNotStoredError`."""
    from lapse.cli.context import in_context
    from lapse.history.view import policy_view

    async def work(context: Context) -> tuple[list[PolicyView], int]:
        found = [policy_view(one) for one in await _in_force(context)]
        return _named(found, names, context.name), context.clock.wall_ns()

    async def remote(client: AsyncClient) -> tuple[list[PolicyView], int]:
        from lapse.cli.remote import read_pages
        from lapse.core.clock import SystemClock

        found = await read_pages(client.retention.list, limit=0)
        return _named(found.items, names, str(client.server)), SystemClock().wall_ns()

    return in_context(flags, work, remote=remote, cluster=cluster, rights=lambda _: "list on retentionpolicies")


async def _in_force(context: Context) -> list[RetentionPolicy]:
    loaded = await context.policies()
    return sorted((one for one, _ in (*loaded.policies, *loaded.broken)), key=lambda one: one.metadata.name)


def _named(found: list[PolicyView], names: Sequence[str], place: str) -> list[PolicyView]:
    known = {one.name: one for one in found}
    for name in names:
        if name not in known:
            raise PolicyNotStoredError(name=name, place=place)
    return [known[name] for name in dict.fromkeys(names)] if names else found


# --- files only -------------------------------------------------------------------------------------------------------


@_command(
    "lapse retention lint policies.yaml", "lapse retention lint --strict *.yaml && kubectl apply -f policies.yaml"
)
def lint(
    *policy: Files,
    strict: Annotated[bool, Parameter(help="Exit with 1 for warnings too.", show_default=False)] = False,
    flags: LintFlags = LintFlags(),
    output: OutputOption = Output.TABLE,
) -> int:
    """Find mistakes in the policies of files.

    Limits that never hit, groupings that put everything in one group, policies
    that overlap, and more. Looks at the files and at nothing else. Exits with 1
    when something is an error.
    """
    from lapse.cli.input import read_files
    from lapse.history.policy.lint import Severity
    from lapse.history.policy.lint import lint as findings

    if not policy:
        raise NoFileError
    documents = read_files(policy)
    interval = flags.load().settings.retention_interval.nanoseconds
    found = findings(documents, interval=interval or 0)
    counts = Counter(one.severity for one in found)
    if output.for_programs:
        print_document(output, {"findings": [one.as_json() for one in found], "policies": len(documents)})
    else:
        _print_findings(found)
        many = "1 policy" if len(documents) == 1 else f"{len(documents)} policies"
        told = ", ".join(f"{counts[each]} {each}{'s' * (counts[each] != 1)}" for each in Severity)
        message(f"{many}: {told}.")
    wrong = counts[Severity.ERROR] or (strict and counts[Severity.WARNING])
    return ExitCode.FAILED if wrong else ExitCode.DONE


def _print_findings(found: list[Finding]) -> None:
    if found:
        rows = [(one.severity, one.policy, one.place or "-", f"{_sentence(one.what)} {one.advice}") for one in found]
        print_table(("severity", "policy", "place", "what"), rows, styles=_STYLES)


def _sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


@_command("lapse retention rbac policies.yaml | kubectl apply -f -", "lapse retention rbac policies.yaml --cluster")
def rbac(*policy: Files, flags: GrantFlags = GrantFlags(), cluster: InCluster = False) -> int:
    """Print the roles that policies need on a cluster.

    With their bindings, as YAML for kubectl apply -f -. They are for the service
    account that policies act as: --retention-account in --lease-namespace. The
    names of their resources are looked up on the cluster, if one is named.
    """
    from lapse.cli.context import in_context
    from lapse.domains import object_kinds
    from lapse.history.policy.rbac import to_text

    policies = [one for _, one in _read_policies(policy)]
    kinds: Sequence[Kind[Any]] = object_kinds()
    if cluster or flags.names_cluster:

        async def work(context: Context) -> list[Kind[Any]]:
            return [await context.store.resolve(one.api_version, one.kind) for one in policies]

        kinds = in_context(flags, work, cluster=True, rights=lambda _: "to ask which kinds there are")
    settings = flags.load().settings
    text = to_text(policies, namespace=settings.lease_namespace, account=settings.retention_account, kinds=kinds)
    print_text(text.rstrip("\n"))
    return ExitCode.DONE
