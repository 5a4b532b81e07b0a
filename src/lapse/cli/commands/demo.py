"""``lapse demo``: things with short TTLs in every domain, for people who see Lapse for the first time.

They are made by a ``lapse up`` that runs on the folder. On a folder where none runs, ``stop`` removes what it can, and
the next ``lapse up`` the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cyclopts import App, Parameter

from lapse.cli.flags import DemoFlags
from lapse.cli.output import ExitCode, Output, OutputOption, message, print_document, print_table, print_text
from lapse.cli.usage import commands_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lapse.cli.context import Context
    from lapse.client import AsyncClient
    from lapse.engine.verbs.demo import DemoView

app = App(
    "demo",
    help="See things lapse: a demo that can be removed.",
    help_epilogue="The demo makes keys, requests, records, files and a workspace that lapse\n"
    "within seconds or minutes. It is made by lapse up, and ends after an hour.",
    default_parameter=Parameter(negative=()),
)
_command = commands_of(app)
_LOOKS: Final = 40
_LOOK_SECONDS: Final = 0.5


@_command("lapse demo start", "lapse demo start --server http://127.0.0.1:8750")
def start(*, flags: DemoFlags = DemoFlags(), output: OutputOption = Output.TABLE) -> int:
    """Let the demo run for an hour; one that runs goes on as it is.

    Its things are made by lapse up; with lapse up --demo they go sooner, as
    it looks for what is over more often.
    """
    from lapse.cli.context import in_context

    async def work(context: Context) -> DemoView:
        return await (await context.demo()).start()

    told = in_context(flags, work, remote=lambda client: client.demo.start())
    return _print(told, output, f"{_state(told)} To remove it: lapse demo stop")


@_command("lapse demo stop", "lapse demo stop --server http://127.0.0.1:8750")
def stop(*, flags: DemoFlags = DemoFlags(), output: OutputOption = Output.TABLE) -> int:
    """End the demo, and remove everything that it has made, and nothing else.

    What of it is held is released, but for legal holds, and what of it is in
    the trash is gone for good. lapse up --demo does not start it again.
    """
    from lapse.cli.context import in_context

    async def work(context: Context) -> DemoView:
        demo, caller = await context.demo(), await context.caller()
        return await _until_gone(lambda: demo.stop(caller))

    async def remote(client: AsyncClient) -> DemoView:
        return await _until_gone(client.demo.stop)

    told = in_context(flags, work, remote=remote)
    if told.is_empty:
        return _print(told, output, "The demo is stopped, and nothing of it is left.")
    left = ", ".join(one for addresses in told.things.values() for one in addresses) or "keys"
    _print(told, output, f"The demo is stopped. Left, until a lapse up has removed it: {left}.")
    _tell_problems(told)
    return ExitCode.PARTLY


@_command("lapse demo status", "lapse demo status -o json")
def status(*, flags: DemoFlags = DemoFlags(), output: OutputOption = Output.TABLE) -> int:
    """Show whether the demo runs, and what there is of it."""
    from lapse.cli.context import in_context

    async def work(context: Context) -> DemoView:
        return await (await context.demo()).status()

    told = in_context(flags, work, remote=lambda client: client.demo.status())
    if output.for_programs:
        print_document(output, told)
        return ExitCode.DONE
    rows = [(domain, one) for domain, addresses in told.things.items() for one in addresses]
    rows += [("keys", f"{told.keys} of application {told.app}")] if told.keys else []
    if rows:
        print_table(("domain", "thing"), rows)
    message(_state(told))
    _tell_notes(told)
    _tell_problems(told)
    return ExitCode.DONE


def _state(told: DemoView) -> str:
    """Say whether it runs; without a lapse up nothing does, whatever is noted."""
    if not told.running:
        return "The demo does not run."
    if told.served:
        return f"The demo runs, until {told.ends_at}."
    return (
        f"The demo is on, until {told.ends_at}, but no lapse up runs on this folder, so nothing comes and goes."
        " It goes on when lapse up runs again."
    )


async def _until_gone(stop: Callable[[], Awaitable[DemoView]]) -> DemoView:
    """Stop it, and ask again while something is left: a workspace is archived before it is removed."""
    from lapse.core.clock import SystemClock

    clock = SystemClock()
    told = await stop()
    for _ in range(_LOOKS):
        if told.is_empty or told.problems:
            break
        await clock.sleep(_LOOK_SECONDS)
        told = await stop()
    return told


def _print(told: DemoView, output: Output, said: str) -> int:
    if output.for_programs:
        print_document(output, told)
    else:
        print_text(said)
        _tell_notes(told)
    return ExitCode.DONE


def _tell_problems(told: DemoView) -> None:
    for address, problem in told.problems.items():
        message(f"{address}: {problem}", style="yellow")


def _tell_notes(told: DemoView) -> None:
    for note in told.notes:
        message(f"{note}.")
