"""``lapse retention``: policies about how many objects of any kind stay, and how long.

``lint`` and ``rbac`` read files and touch nothing; ``status`` reads what the last passes wrote; ``run`` is a pass, now.
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
    print_table,
    print_text,
    print_views,
)
from lapse.cli.retention_pass import DetailedExitcode, DryRun
from lapse.cli.usage import commands_of
from lapse.core.errors import LapseError, UsageError

if TYPE_CHECKING:
    from lapse.cli.context import Context
    from lapse.history.api.kinds import RetentionPolicy
    from lapse.history.policy.lint import Finding
    from lapse.history.policy.policy import Policy
    from lapse.kube.resources import Kind

app = App(
    "retention",
    help="Limit the age and the number of objects of any kind, by policies.",
    help_epilogue="A POLICY is a file with RetentionPolicy documents, YAML or JSON; - is stdin.",
    default_parameter=Parameter(negative=()),
)
_STYLES: Final = {"error": "red", "warning": "yellow", "True": "green", "False": "red"}
Files = Annotated[
    str,
    Parameter(name="POLICY", help="Files with RetentionPolicy documents; - is stdin.", allow_leading_hyphen=True),
]
_command = commands_of(app)


class NoFileError(UsageError):
    """No file is named. Name the files to look at, or - for stdin."""


class SameNameError(UsageError):
    """Two policies are called {name}. Give each a name of its own."""


class NoSuchPolicyError(LapseError):
    """There is no retention policy {name} in {place}; lapse retention status shows the existing ones."""


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
    "lapse retention run old-jobs.yaml --cluster",
)
def run(
    *policy: Files,
    dry_run: DryRun = False,
    detailed_exitcode: DetailedExitcode = False,
    flags: RunFlags = RunFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Run the policies of files once, now.

    Lists what they end. The policies need not be stored; stored ones
    protect what they keep. A policy with dryRun, which is true until it is
    set to false, ends nothing.
    """
    from lapse.cli.context import in_context
    from lapse.cli.retention_pass import Done, finish, pass_over

    documents = [one for one, _ in _read_policies(policy)]
    names = [one.metadata.name for one in documents]
    if len(set(names)) < len(names):
        raise SameNameError(name=next(name for name in names if names.count(name) > 1))

    async def work(context: Context) -> Done:
        return await pass_over(context, only=names, instead=documents, dry_run=dry_run)

    kinds = ", ".join(sorted({one.spec.selector.kind for one in documents}))
    rights = f"list and delete on what the policies select ({kinds}), list on retentionpolicies"
    done = in_context(flags, work, cluster=cluster, rights=lambda _: rights)
    return finish(done, output, pending=detailed_exitcode)


# --- status -----------------------------------------------------------------------------------------------------------


@_command("lapse retention status", "lapse retention status old-jobs --cluster", "lapse retention status policies.yaml")
def status(
    policy: Annotated[str | None, Parameter(help="One policy, to show all about it; or a file with policies.")] = None,
    /,
    *,
    flags: PlaceFlags = PlaceFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Show the last and the next passes of the policies.

    The policies of the settings are among them, once a process runs with them.
    """
    from lapse.cli.context import in_context
    from lapse.history.view import POLICY_COLUMNS, policy_rows, policy_view

    names = None if policy is None else _named(policy)

    async def work(context: Context) -> tuple[list[RetentionPolicy], int]:
        from lapse.history.policy.policies import load_policies

        loaded = await load_policies(context.store)
        found = {one.metadata.name: one for one, _ in (*loaded.policies, *loaded.broken)}
        for missing in set(names or ()) - set(found):
            raise NoSuchPolicyError(name=missing, place=context.name)
        return [found[name] for name in (sorted(found) if names is None else names)], context.clock.wall_ns()

    found, now = in_context(flags, work, cluster=cluster, rights=lambda _: "list on retentionpolicies")
    views = [policy_view(one) for one in found]
    if output.for_programs:
        print_document(output, views[0] if names == [policy] else {"items": views})
    elif names == [policy]:
        print_table(("fact", "value"), policy_rows(found[0], now))
    elif found:
        print_views(views, POLICY_COLUMNS, now, styles=_STYLES)
    else:
        message("There are no policies. A process that runs with the settings of the history makes its own.")
    return ExitCode.DONE


def _named(given: str) -> list[str]:
    """Return the name of a policy, or those of the policies in a file."""
    from pathlib import Path

    is_file = given == "-" or Path(given).is_file()
    return [one.metadata.name for one, _ in _read_policies([given])] if is_file else [given]


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
