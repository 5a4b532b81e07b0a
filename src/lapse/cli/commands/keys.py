"""``lapse keys``: the operations of a keys store, one command each, and its conformance.

Values are secrets, so they come from stdin when asked (``-``), are printed by `get` only, and `scan` hides them unless
told otherwise. A command that finds no live key, or whose condition does not hold, changes nothing and exits with 1.

``lapse keys conformance`` runs the kit on a store. The result table and the capability table go to stdout, progress and
the summary to stderr. The exit code is 0 when no rule is violated; a rule that this store gives no occasion to ask
about counts neither way, and the table says why.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter, Token
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lapse.cli.input import value_from, values_from
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
    stderr,
)
from lapse.cli.usage import commands_of, examples
from lapse.core.clock import SystemClock
from lapse.core.duration import MILLISECOND, SECOND, Duration
from lapse.core.errors import UsageError
from lapse.keys.conformance import CaseOutcome, CaseResult, StoreTarget, list_cases, run_conformance
from lapse.keys.errors import InvalidAppIdError, InvalidLimitError, InvalidTTLError
from lapse.keys.port import Capabilities, Item
from lapse.keys.store import AppKeys, open_keys
from lapse.keys.url import init_store, parse_url
from lapse.keys.validation import MAX_APP_ID, MAX_SCAN_LIMIT, MAX_TTL_SECONDS, check_app_id, check_scan, check_ttl

if TYPE_CHECKING:
    from lapse.engine.view import Columns
    from lapse.keys.view import KeyView

app = App(
    "keys",
    help="Read and write expiring keys; prove a backend.",
    help_epilogue="Every key belongs to an application, named by --app N.\n"
    "Secrets: write - for a value, and it is read from stdin or asked for.",
    default_parameter=Parameter(negative=()),
)


_command = commands_of(app)


class TTLMissingError(UsageError):
    """No TTL is given. Write --ttl 15m, or --ttl-seconds 900."""


class TTLTwiceError(UsageError):
    """The TTL is given twice. Write either --ttl or --ttl-seconds."""


_MOST_DIGITS: Final = 20  # twice what any number here needs; Python itself refuses thousands with an error of its own


def _whole_number(wrong: Callable[[str], Exception]) -> Callable[[type, tuple[Token, ...]], int]:
    # Not cyclopts' own int, which also takes 0x10 and rounds 1.5.
    def convert(_: type, tokens: tuple[Token, ...]) -> int:
        text = tokens[0].value
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()):
            raise wrong(repr(text))
        if len(digits) > _MOST_DIGITS:
            raise wrong(f"a number of {len(digits)} digits")
        return int(text)

    return convert


AppId = Annotated[
    int,
    Parameter(
        help="Application id, 0 to 4294967295.",
        metavar="N",
        converter=_whole_number(lambda text: InvalidAppIdError(given=text, limit=MAX_APP_ID)),
    ),
]
Limit = Annotated[
    int,
    Parameter(
        help="Keys per page, 1 to 10000.",
        metavar="N",
        converter=_whole_number(lambda text: InvalidLimitError(given=text, limit=MAX_SCAN_LIMIT)),
    ),
]
TTL = Annotated[
    str | None,
    Parameter(
        help="How long it lives: 15m, 1h30m, 7d, PT10M; 365d at most.",
        metavar="DURATION",
        allow_leading_hyphen=True,  # -5m is a wrong duration, not an unknown option
    ),
]
TTLSeconds = Annotated[
    int | None,
    Parameter(
        help="The same, as a whole number of seconds.",
        metavar="N",
        converter=_whole_number(lambda text: InvalidTTLError(given=text, limit=MAX_TTL_SECONDS)),
    ),
]
Key = Annotated[str, Parameter(help="1 to 1024 bytes of UTF-8.")]
Value = Annotated[str, Parameter(help="At most 65536 bytes of UTF-8; - reads stdin.", allow_leading_hyphen=True)]


def _configured() -> str:
    from lapse.files.ownership import StateFolderError
    from lapse.settings import load_settings  # not for a command with --url, which need not wait for it

    settings = load_settings().settings
    if settings.keys_url.startswith(settings.state_dir.as_uri()):
        try:
            settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StateFolderError(path=settings.state_dir, problem=error.strerror) from error
    return settings.keys_url


@Parameter(name="*")
@dataclass(frozen=True)
class KeysOf:
    """Whose keys, and where."""

    app: AppId
    url: Annotated[
        str | None,
        Parameter(
            metavar="URL",
            help="The store, as file:///path/keys.db; by default the configured one. "
            "A memory:// store ends with its process, so it is of no use here.",
        ),
    ] = None

    @contextmanager
    def opened(self) -> Iterator[AppKeys]:
        """Open the store; without a background sweep, because this process ends in a moment."""
        check_app_id(self.app)
        with open_keys(self.url or _configured(), sweep=False) as keys:
            yield keys.app(self.app)


@Parameter(name="*")
@dataclass(frozen=True)
class Life:
    """How long a key lives from now on."""

    ttl: TTL = None
    ttl_seconds: TTLSeconds = None

    def seconds(self) -> int:
        """Return the TTL, which must be given exactly once."""
        if self.ttl is not None and self.ttl_seconds is not None:
            raise TTLTwiceError
        if self.ttl_seconds is not None:
            check_ttl(self.ttl_seconds)
            return self.ttl_seconds
        if self.ttl is None:
            raise TTLMissingError
        duration = Duration.parse(self.ttl)
        if duration.nanoseconds is None or duration.nanoseconds % SECOND:
            raise InvalidTTLError(given=duration, limit=MAX_TTL_SECONDS)
        check_ttl(duration.nanoseconds // SECOND)
        return duration.nanoseconds // SECOND


NO_TTL: Final = Life()
_ABSENT: Final = "no live key"


def _outcome(output: Output, result: dict[str, Any], *, done: bool, said: tuple[str, str]) -> int:
    """Print what a conditional command did and return its exit code; ``said`` is for done and for not done."""
    print_result(output, result, said[0] if done else said[1])
    return ExitCode.DONE if done else ExitCode.FAILED


@_command(
    "lapse keys init redis://localhost:6379/0",
    "lapse keys init 'file:///var/lib/app/keys.db?buckets=16'",
)
def init(
    url: Annotated[str, Parameter(help="The store, as redis://host:6379/0.")], /, *, output: OutputOption = Output.TABLE
) -> int:
    """Make the schema or the table that a store needs.

    Those that are there already stay as they are. Some stores need neither.
    """
    said = init_store(url, SystemClock())
    print_result(output, {"ready": True, "said": said}, said)
    return ExitCode.DONE


@_command(
    "lapse keys get alpha:ABC123 --app 7",
    "lapse keys get alpha:ABC123 --app 7 -o json",
)
def get(key: Key, /, *, store: KeysOf, output: OutputOption = Output.TABLE) -> int:
    """Print the value of a live key."""
    from lapse.keys.view import view_of

    with store.opened() as keys:
        item = keys.get_item(key)
    if output.for_programs:
        absent = dict.fromkeys(("key", "value", "expires_at", "ttl_seconds"))
        print_document(output, view_of(item, SystemClock.wall_ns()) if item else absent | {"key": key})
    elif item:
        print_text(item.value)
    if item is None:
        message(_ABSENT)
    return ExitCode.FAILED if item is None else ExitCode.DONE


@_command(
    "lapse keys insert alpha:ABC123 device:XYZ789 --app 7 --ttl 15m",
    "lapse keys insert alpha:ABC123 - --app 7 --ttl 15m < secret.txt",
)
def insert(
    key: Key, value: Value, /, *, store: KeysOf, life: Life = NO_TTL, output: OutputOption = Output.TABLE
) -> int:
    """Write a key unless a live one is there.

    Of many callers at once, one succeeds.
    """
    seconds, secret = life.seconds(), value_from(value, "Value")
    with store.opened() as keys:
        done = keys.insert_if_not_exists(key, secret, seconds)
    said = ("inserted", "a live key is already there; nothing was changed")
    return _outcome(output, {"key": key, "inserted": done}, done=done, said=said)


@_command(
    "lapse keys put alpha:ABC123 device:XYZ789 --app 7 --ttl 15m",
    "lapse keys put alpha:ABC123 - --app 7 --ttl-seconds 900 < secret.txt",
)
def put(key: Key, value: Value, /, *, store: KeysOf, life: Life = NO_TTL, output: OutputOption = Output.TABLE) -> int:
    """Write a key; one that is there is replaced."""
    seconds, secret = life.seconds(), value_from(value, "Value")
    with store.opened() as keys:
        keys.put(key, secret, seconds)
    print_result(output, {"key": key, "put": True}, "put")
    return ExitCode.DONE


@_command(
    "lapse keys swap alpha:ABC123 device:XYZ789 device:NEW --app 7 --ttl 15m",
    "lapse keys swap alpha:ABC123 - - --app 7 --ttl 15m < old-and-new.txt",
)
def swap(
    key: Key,
    expected: Value,
    new: Value,
    /,
    *,
    store: KeysOf,
    life: Life = NO_TTL,
    output: OutputOption = Output.TABLE,
) -> int:
    """Replace a value and restart its TTL, if it is the expected one.

    Of many callers that swap the same value at once, one succeeds. With - for both
    values, stdin holds the expected one on its first line and the new one on
    its second.
    """
    seconds = life.seconds()
    before, after = values_from(expected, new, ("Expected value", "New value"))
    with store.opened() as keys:
        done = keys.compare_and_swap(key, before, after, seconds)
    said = ("swapped", "no live key with the expected value; nothing was changed")
    return _outcome(output, {"key": key, "swapped": done}, done=done, said=said)


@_command(
    "lapse keys delete alpha:ABC123 --app 7",
    "lapse keys delete alpha:ABC123 --app 7 --if-value device:NEW",
)
def delete(
    key: Key,
    /,
    *,
    store: KeysOf,
    if_value: Annotated[
        str | None,
        Parameter(metavar="VALUE", help="Only if this is the live value; - reads stdin.", allow_leading_hyphen=True),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> int:
    """Delete a live key."""
    expected = None if if_value is None else value_from(if_value, "Expected value")
    with store.opened() as keys:
        done = keys.delete(key) if expected is None else keys.compare_and_delete(key, expected)
    absent = _ABSENT if expected is None else "no live key with the expected value"
    return _outcome(
        output, {"key": key, "deleted": done}, done=done, said=("deleted", f"{absent}; nothing was changed")
    )


@_command(
    "lapse keys touch alpha:ABC123 --app 7 --ttl 1h",
)
def touch(key: Key, /, *, store: KeysOf, life: Life = NO_TTL, output: OutputOption = Output.TABLE) -> int:
    """Restart the TTL of a live key; its value stays."""
    seconds = life.seconds()
    with store.opened() as keys:
        done = keys.touch(key, seconds)
    said = ("touched", f"{_ABSENT}; nothing was changed")
    return _outcome(output, {"key": key, "touched": done}, done=done, said=said)


@_command(
    "lapse keys ttl alpha:ABC123 --app 7",
)
def ttl(key: Key, /, *, store: KeysOf, output: OutputOption = Output.TABLE) -> int:
    """Print how long a live key still lives."""
    with store.opened() as keys:
        seconds = keys.query_ttl(key)
    if output.for_programs:
        print_document(output, {"key": key, "ttl_seconds": seconds})
    elif seconds is not None:
        print_text(str(Duration(round(seconds * 1000) * MILLISECOND)))
    if seconds is None:
        message(_ABSENT)
    return ExitCode.FAILED if seconds is None else ExitCode.DONE


@_command(
    "lapse keys scan --app 7 --prefix alpha:",
    "lapse keys scan --app 7 --all -o json",
)
def scan(
    *,
    store: KeysOf,
    prefix: Annotated[str, Parameter(metavar="TEXT", help="Only keys that start with this.", show_default=False)] = "",
    after: Annotated[
        str | None, Parameter(metavar="KEY", help="Only keys after this one: the last of the page before.")
    ] = None,
    limit: Limit = 1000,
    all_pages: Annotated[bool, Parameter(name="--all", help="All pages, not only one.", show_default=False)] = False,
    show_values: Annotated[bool, Parameter(help="Show the values too; they are secrets.", show_default=False)] = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """List live keys in byte order, without their values."""
    from lapse.keys.view import view_of

    check_scan(prefix, after, limit)
    with store.opened() as keys:
        items = list(_pages(keys, prefix, after, limit)) if all_pages else keys.scan(prefix, after, limit)
    more = not all_pages and len(items) == limit
    views = [view_of(item, SystemClock.wall_ns(), with_value=show_values) for item in items]
    if output.for_programs:
        print_document(output, {"items": views, "next_after": views[-1].key if more else None})
        return ExitCode.DONE
    columns: Columns = {"key": "key", "expires in": _expires_in, "expires at": "expires_at"}
    print_views(views, {**columns, "value": "value"} if show_values else columns)
    if more:
        message("There may be more: repeat with --after and the last key, or use --all.")
    return ExitCode.DONE


app.command(
    "lapse.cli.commands.keys:conformance",  # by name: it brings processes, threads and every case of the kit
    name="conformance",
    help="Prove that a backend keeps the rules.\n\n"
    "The store may be in use: the kit works in applications of its own, leaves\n"
    "nothing behind and touches no other record. It takes some seconds on an\n"
    "embedded store, and up to a minute on a server.",
    help_epilogue=examples(
        "lapse keys conformance memory://",
        "lapse keys conformance file:///var/lib/app/keys.db -o json",
        "lapse keys conformance memory:// --only insert-live insert-absent",
    ),
)


def _pages(keys: AppKeys, prefix: str, after: str | None, limit: int) -> Iterator[Item]:
    while page := keys.scan(prefix, after, limit):
        yield from page
        after = page[-1].key


def _expires_in(view: KeyView, _: int) -> Duration:
    return Duration.of_seconds(math.ceil(view.ttl_seconds))  # read at a glance: no milliseconds


_SUMMARY: Final = {
    CaseOutcome.HOLDS: "hold",
    CaseOutcome.VIOLATED: "violated",
    CaseOutcome.NOT_APPLICABLE: "not applicable",
}
_STYLES: Final = {CaseOutcome.HOLDS: "green", CaseOutcome.VIOLATED: "bold red", CaseOutcome.NOT_APPLICABLE: "dim"}


def conformance(
    url: Annotated[str, Parameter(metavar="URL", help="The store, as memory:// or file:///path/keys.db.")],
    /,
    *,
    only: Annotated[
        list[str] | None,
        Parameter(metavar="ID", help="Only the cases with these ids.", consume_multiple=True, negative=()),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> int:
    """Run the kit and print what holds; the help text stands where the command is registered."""
    target = StoreTarget.from_url(url)
    with closing(_watched(target, only)) as played:
        found = {result.case.id: result for result in played}
    results = [found[case.id] for case in list_cases() if case.id in found]
    if output.for_programs:
        print_document(output, _as_json(url, results, target.capabilities()))
    else:
        _print_tables(results, target.capabilities())
    return _conclude(results)


def _watched(target: StoreTarget, only: list[str] | None) -> Generator[CaseResult]:
    """Yield the results while a bar on the terminal shows how far it is."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = stderr()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("playing", total=len(set(only)) if only else len(list_cases()))
        for result in run_conformance(target, only=only or None):
            progress.advance(task)
            yield result


def _print_tables(results: list[CaseResult], promises: Capabilities) -> None:
    rows = ((result.outcome, result.case.id, _told(result)) for result in results)
    print_table(("result", "id", "rule"), rows, styles=_STYLES)
    print_text("")
    print_table(("capability", "promise"), ((name.replace("_", " "), told) for name, told in _promised(promises)))


def _told(result: CaseResult) -> str:
    return f"{result.case.title} ({result.detail})" if result.detail else result.case.title


def _promised(promises: Capabilities) -> Iterator[tuple[str, str]]:
    for name, told in asdict(promises).items():
        yield name, {True: "yes", False: "no"}.get(told, str(told)) if isinstance(told, bool) else str(told)


def _as_json(url: str, results: list[CaseResult], promises: Capabilities) -> dict[str, Any]:
    cases = [
        {
            "id": result.case.id,
            "title": result.case.title,
            "rule": result.case.rule,
            "result": result.outcome,
            "detail": result.detail,
            "seconds": round(result.seconds, 3),
        }
        for result in results
    ]
    return {"store": str(parse_url(url)), "holds": _holds(results), "cases": cases, "capabilities": asdict(promises)}


def _holds(results: list[CaseResult]) -> bool:
    return all(result.outcome is not CaseOutcome.VIOLATED for result in results)


def _conclude(results: list[CaseResult]) -> int:
    for result in results:
        if result.outcome is CaseOutcome.VIOLATED:
            message(f"violated: {result.case.id}: {result.detail}", style="red")
    counts = Counter(result.outcome for result in results)
    message(", ".join(f"{counts[outcome]} {told}" for outcome, told in _SUMMARY.items()) + ".")
    return ExitCode.DONE if _holds(results) else ExitCode.FAILED
