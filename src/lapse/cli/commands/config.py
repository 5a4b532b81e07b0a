"""``lapse config``: what is set, and by whom."""

from __future__ import annotations

from cyclopts import App

from lapse.cli.flags import AllFlags
from lapse.cli.output import Output, OutputOption, message, print_document, print_table

app = App("config", help="Show and check the configuration.")


@app.command
def show(flags: AllFlags = AllFlags(), *, output: OutputOption = Output.TABLE) -> None:
    """Print every setting with its effective value and where that came from; passwords are masked.

    A flag wins over the environment, the environment over the file, the file over the default.
    """
    from lapse.engine.view import ViewPage

    loaded = flags.load()
    if output.for_programs:
        shown = [{"key": key, "value": value, "origin": origin} for key, value, origin in loaded.shown()]
        print_document(output, ViewPage(shown, None))
    else:
        print_table(["key", "value", "origin"], loaded.shown())
    _warn(loaded.warnings)


@app.command
def check(flags: AllFlags = AllFlags()) -> None:
    """Check file, environment and flags; exit with 64 and a list of everything that is wrong, with its line."""
    from lapse.app.domains import own_domains
    from lapse.app.webhooks import check_webhooks
    from lapse.core.clock import SystemClock

    loaded = flags.load()
    own_domains(loaded.settings, SystemClock())
    check_webhooks(loaded.settings)
    _warn(loaded.warnings)
    message(f"The settings are valid ({loaded.file or 'no file'}).")


def _warn(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        message(f"warning: {warning}", style="yellow")
