"""``lapse crds``: the definitions of all kinds of ours, whichever domain they belong to, on a cluster or as YAML.

The cluster is that of ``lapse operator`` with the same settings. What went wrong is one line; what was done before it
went wrong is printed too. ``python -m lapse.cli.commands.crds FOLDER`` writes the definitions, one file each, with a
Kustomization that lists them; a test demands that those in the repository are what this writes.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter

from lapse.cli.flags import DefinitionsFlags
from lapse.cli.output import ExitCode, Output, OutputOption, message, print_document, print_table, print_text
from lapse.cli.usage import commands_of
from lapse.core.duration import Duration, DurationError
from lapse.core.errors import UsageError
from lapse.domains import REGISTRY
from lapse.engine.view import ViewPage
from lapse.kube.crd.definition import write

if TYPE_CHECKING:
    from lapse.kube.crd.installation import Comparison, Definitions
    from lapse.kube.resources import Json


def all_definitions() -> list[Json]:
    """Return the definitions, domain by domain."""
    return [one for domain in REGISTRY.built_in for one in domain.definitions()]


app = App(
    "crds",
    help="Install and compare the definitions of our kinds on a Kubernetes cluster.",
    help_epilogue="The cluster is that of --kube-config, KUBECONFIG, the pod we run in, or ~/.kube/config.",
    default_parameter=Parameter(negative=()),
)
_NS: Final = 1_000_000_000
_LONGEST: Final = 100
"""Characters of a value in a table: a whole schema is found with ``-o json``."""
_command = commands_of(app)


class TimeoutFormatError(UsageError):
    """--timeout is {given!r}. Expected a duration such as 30s or 2m."""


@_command("lapse crds install", "lapse crds install --kube-context staging")
def install(
    flags: DefinitionsFlags = DefinitionsFlags(),
    *,
    timeout: Annotated[str, Parameter(metavar="DURATION", help="How long to wait until each is served.")] = "30s",
    output: OutputOption = Output.TABLE,
) -> int:
    """Create or update the definitions, and wait until they are served.

    Definitions that are up to date are not changed. Nothing is deleted.
    """
    seconds = _seconds(timeout)
    done: list[Json] = []
    try:
        asyncio.run(_install(flags, seconds, done))
    finally:
        if done and output.for_programs:
            print_document(output, ViewPage(done, None))
        elif done:
            print_table(["definition", "result"], [list(row.values()) for row in done])
    return ExitCode.DONE


async def _install(flags: DefinitionsFlags, seconds: float, done: list[Json]) -> None:
    async with _definitions(flags, verbs="get, create and patch") as definitions:
        for wanted in all_definitions():
            result = await definitions.install(wanted)
            done.append({"definition": wanted["metadata"]["name"], "result": str(result)})
        for wanted in all_definitions():
            await definitions.wait_until_served(wanted["metadata"]["name"], seconds=seconds)


@_command("lapse crds diff", "lapse crds diff --detailed-exitcode || lapse crds install")
def diff(
    flags: DefinitionsFlags = DefinitionsFlags(),
    *,
    detailed_exitcode: Annotated[
        bool, Parameter(help="Exit with 2 when something differs.", show_default=False)
    ] = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Show what lapse crds install would change. Changes nothing."""
    compared = asyncio.run(_compare(flags))
    pending = [one for one in compared if one.state != "same"]
    if output.for_programs:
        print_document(output, ViewPage([asdict(one) for one in compared], None))
    elif pending:
        print_table(["definition", "state", "place", "on the cluster", "wanted"], _rows(pending))
    else:
        message(f"Nothing differs: all {len(compared)} definitions are up to date.")
    return ExitCode.PENDING if pending and detailed_exitcode else ExitCode.DONE


async def _compare(flags: DefinitionsFlags) -> list[Comparison]:
    async with _definitions(flags, verbs="get") as definitions:
        return [await definitions.compare(wanted) for wanted in all_definitions()]


def _rows(pending: list[Comparison]) -> list[list[str]]:
    rows = []
    for one in pending:
        if not one.differences:
            rows.append([one.name, str(one.state), "", "", ""])
        rows.extend(
            [one.name, str(one.state), place.path, _short(place.cluster), _short(place.wanted)]
            for place in one.differences
        )
    return rows


def _short(value: Any) -> str:  # noqa: ANN401 - a part of any document
    text = "-" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


@_command("lapse crds print | kubectl apply -f -", "lapse crds print > crds.yaml", name="print")
def print_definitions() -> int:
    """Write the definitions as YAML. Needs no cluster."""
    from lapse.kube.crd.definition import to_yaml

    print_text("---\n".join(to_yaml(wanted) for wanted in all_definitions()).removesuffix("\n"))
    return ExitCode.DONE


def _seconds(text: str) -> float:
    try:
        nanoseconds = Duration.parse(text).nanoseconds
    except DurationError:
        nanoseconds = None
    if nanoseconds is None or nanoseconds <= 0:
        raise TimeoutFormatError(given=text)
    return nanoseconds / _NS


@asynccontextmanager
async def _definitions(flags: DefinitionsFlags, *, verbs: str) -> AsyncIterator[Definitions]:
    """Connect to a server that keeps all that the definitions say."""
    from lapse.app.cluster import in_plain_words, open_client
    from lapse.core.clock import SystemClock
    from lapse.kube.crd.installation import Definitions

    client = open_client(flags.load().settings, clock=SystemClock())
    try:
        with in_plain_words(client, rights=f"{verbs} on customresourcedefinitions"):
            definitions = Definitions(client)
            await definitions.check_server()
            yield definitions
    finally:
        await client.close()


if __name__ == "__main__":
    write(Path(sys.argv[1]), all_definitions())
