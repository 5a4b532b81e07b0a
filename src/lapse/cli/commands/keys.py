"""``lapse keys``: the operations of a keys store, one command each, and its conformance.

They work on a store of this machine, or on a running Lapse over its API. Values are secrets, so they come from stdin
when asked (``-``), are printed by `get`, and hidden by `list` and `show` unless told otherwise. A command that finds no
live key, or whose condition does not hold, changes nothing and exits with 1.

``lapse keys conformance`` runs the kit on a store. The result table and the capability table go to stdout, progress and
the summary to stderr. The exit code is 0 when no rule is violated; a rule that this store gives no occasion to ask
about counts neither way, and the table says why.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from cyclopts import App, Parameter, Token
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lapse.cli.flags import KeysFlags
from lapse.cli.input import Yes, confirm, value_from, values_from
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
    stderr,
)
from lapse.cli.usage import NumberError, commands_of, examples
from lapse.core.clock import SystemClock
from lapse.core.duration import MILLISECOND, SECOND, Duration
from lapse.core.errors import UsageError
from lapse.keys.conformance import CaseOutcome, CaseResult, StoreTarget, list_cases, run_conformance
from lapse.keys.errors import InvalidAppIdError, InvalidTTLError
from lapse.keys.port import Capabilities, Item
from lapse.keys.store import AppKeys, open_keys
from lapse.keys.url import init_store, parse_url
from lapse.keys.validation import MAX_APP_ID, MAX_SCAN_LIMIT, MAX_TTL_SECONDS, check_app_id, check_scan, check_ttl

if TYPE_CHECKING:
    from lapse.client.nouns import RemoteKeys
    from lapse.engine.view import Columns, ViewPage
    from lapse.keys.view import KeyView

T = TypeVar("T")

app = App(
    "keys",
    help="Read and write expiring keys; prove a backend.",
    help_epilogue="Every key belongs to an application: KEY --app N, or the address key/N/KEY.\n"
    "Secrets: write - for a value, and it is read from stdin or asked for.",
    default_parameter=Parameter(negative=()),
)


_command = commands_of(app)


class AppMissingError(UsageError):
    """Say whose keys: --app N, or an address such as key/7/alpha, with odd characters percent-encoded."""


class TwoStoresError(UsageError):
    """--url names a store, and --state-dir names another one. Give one of them."""


class TTLMissingError(UsageError):
    """No TTL is given. Write --ttl 15m, or --ttl-seconds 900."""


class TTLTwiceError(UsageError):
    """The TTL is given twice. Write either --ttl or --ttl-seconds."""


_FROM_ZERO: Final = "0 for all, or a number above 0"
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
    int | None,
    Parameter(
        help="Application id, 0 to 4294967295; needless where KEY is an address.",
        metavar="N",
        converter=_whole_number(lambda text: InvalidAppIdError(given=text, limit=MAX_APP_ID)),
    ),
]
Limit = Annotated[
    int,
    Parameter(
        help="How many to print at most; 0 for all.",
        metavar="N",
        converter=_whole_number(lambda text: NumberError(name="--limit", given=text, expected=_FROM_ZERO)),
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
Key = Annotated[str, Parameter(help="1 to 1024 bytes of UTF-8; or without --app an address, as key/7/alpha.")]
Value = Annotated[str, Parameter(help="At most 65536 bytes of UTF-8; - reads stdin.", allow_leading_hyphen=True)]


_NO_FLAGS: Final = KeysFlags()


@Parameter(name="*")
@dataclass(frozen=True)
class KeysOf:
    """Whose keys, and where."""

    app: AppId = None
    url: Annotated[
        str | None,
        Parameter(
            metavar="URL",
            help="The store, as file:///path/keys.db; by default the configured one. "
            "A memory:// store ends with its process, so it is of no use here.",
        ),
    ] = None
    flags: KeysFlags = _NO_FLAGS

    @property
    def app_id(self) -> int:
        """The application, which must be given."""
        if self.app is None:
            raise AppMissingError
        check_app_id(self.app)
        return self.app

    def locate(self, given: str) -> tuple[int, str]:
        """Return application and name of a key; what is given is its name with --app, and its address without."""
        from lapse.core.address import AddressError
        from lapse.domains import REGISTRY

        if self.app is not None or not given.startswith("key/"):
            return self.app_id, given
        try:
            address = REGISTRY.parse(given)
        except AddressError:
            raise AppMissingError from None  # the cause would show the key
        return int(address.scope or 0), address.name

    def ask(self, app: int, here: Callable[[AppKeys], T], there: Callable[[RemoteKeys], Coroutine[Any, Any, T]]) -> T:
        """Ask a store of this machine ``here``, or a running Lapse ``there`` if flags or environment name one."""
        from lapse.cli.remote import OtherFlagsError, ask_server, client_at

        if self.url is None:
            client = client_at(self.flags)
            if client is not None:
                return ask_server(client, lambda found: there(found.keys))
        elif self.flags.asks_server is not None:
            raise OtherFlagsError(flags="--url")
        elif "state_dir" in self.flags.given:
            raise TwoStoresError
        # Without a background sweep, because this process ends in a moment.
        with open_keys(self.url or _configured(self.flags), sweep=False) as keys:
            return here(keys.app(app))


def _configured(flags: KeysFlags) -> str:
    from lapse.files.ownership import StateFolderError

    settings = flags.load_and_warn().settings
    if settings.keys_url.startswith(settings.state_dir.as_uri()):
        try:
            settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StateFolderError(path=settings.state_dir, problem=error.strerror) from error
    return settings.keys_url


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
_NAMES: Final = ("address", "key", "value", "expires_at", "ttl_seconds")


def _outcome(output: Output, where: tuple[int, str], verb: str, *, done: bool, otherwise: str = "") -> int:
    """Print what a command did and return its exit code; ``otherwise`` is why nothing was done."""
    from lapse.keys.view import address_of

    address = address_of(*where)
    if done or output.for_programs:
        print_result(output, {"address": address, "key": where[1], verb: done}, f"{verb.capitalize()}: {address}.")
    if not done:
        message(f"{otherwise}; nothing was changed")
    return ExitCode.DONE if done else ExitCode.FAILED


@_command(
    "lapse keys list --app 7 --prefix alpha:",
    "lapse keys list --app 7 --limit 0 -o json",
    name="list",
)
def list_keys(
    *,
    store: KeysOf = KeysOf(),
    prefix: Annotated[str, Parameter(metavar="TEXT", help="Only keys that start with this.", show_default=False)] = "",
    limit: Limit = 100,
    after: Annotated[
        str | None, Parameter(metavar="NEXT", help="Only keys after this one: the next of the page before.")
    ] = None,
    show_values: Annotated[bool, Parameter(help="Show the values too; they are secrets.", show_default=False)] = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """List live keys in byte order, without their values."""
    from lapse.cli.remote import read_pages
    from lapse.engine.view import ViewPage

    app = store.app_id
    if limit < 0:
        raise NumberError(name="--limit", given=limit, expected=_FROM_ZERO)
    check_scan(prefix, after, 1)
    page = store.ask(
        app,
        lambda keys: _listed(keys, prefix, after, limit),
        lambda keys: read_pages(partial(keys.list, app, prefix=prefix), limit=limit, after=after),
    )
    columns: Columns = {"address": "address", "key": "key", "expires in": _expires_in, "expires at": "expires_at"}
    if show_values:
        columns = {**columns, "value": "value"}
    else:
        page = ViewPage([_without_value(one) for one in page.items], page.next)
    print_page(output, page, columns, none="There are no such keys." if prefix else "There are no keys.")
    return ExitCode.DONE


@_command(
    "lapse keys show alpha:ABC123 --app 7",
    "lapse keys show key/7/alpha:ABC123 --show-value -o json",
)
def show(
    key: Key,
    /,
    *,
    store: KeysOf = KeysOf(),
    show_value: Annotated[bool, Parameter(help="Show the value too; it is a secret.", show_default=False)] = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Show when a live key expires, and how long it still lives."""
    found = _read(store, key)
    if found is None:
        return _absent(output, store, key, _NAMES if show_value else [name for name in _NAMES if name != "value"])
    if not show_value:
        found = _without_value(found)
    if output.for_programs:
        print_document(output, found)
    else:
        left = Duration(round(found.ttl_seconds * 1000) * MILLISECOND)
        rows = [("address", found.address), ("key", found.key), ("expires", found.expires_at), ("remaining", left)]
        print_table(("fact", "value"), [*rows, ("value", found.value)] if show_value else rows)
    return ExitCode.DONE


@_command(
    "lapse keys get alpha:ABC123 --app 7",
    "lapse keys get alpha:ABC123 --app 7 -o json",
)
def get(key: Key, /, *, store: KeysOf = KeysOf(), output: OutputOption = Output.TABLE) -> int:
    """Print the value of a live key."""
    found = _read(store, key)
    if found is None:
        return _absent(output, store, key, _NAMES)
    if output.for_programs:
        print_document(output, found)
    else:
        print_text(str(found.value))
    return ExitCode.DONE


def _read(store: KeysOf, given: str) -> KeyView | None:
    from lapse.keys.view import view_of

    def here(keys: AppKeys) -> KeyView | None:
        item = keys.get_item(key)
        return None if item is None else view_of(app, item, SystemClock.wall_ns())

    app, key = store.locate(given)
    return store.ask(app, here, lambda keys: keys.show(app, key))


def _absent(output: Output, store: KeysOf, given: str, names: Iterable[str]) -> int:
    from lapse.keys.view import address_of

    app, key = store.locate(given)
    if output.for_programs:
        print_document(output, dict.fromkeys(names) | {"address": address_of(app, key), "key": key})
    message(_ABSENT)
    return ExitCode.FAILED


@_command(
    "lapse keys insert alpha:ABC123 device:XYZ789 --app 7 --ttl 15m",
    "lapse keys insert alpha:ABC123 - --app 7 --ttl 15m < secret.txt",
)
def insert(
    key: Key, value: Value, /, *, store: KeysOf = KeysOf(), life: Life = NO_TTL, output: OutputOption = Output.TABLE
) -> int:
    """Write a key unless a live one is there.

    Of many callers at once, one succeeds.
    """
    app, name = store.locate(key)
    seconds, secret = life.seconds(), value_from(value, "Value")
    done = store.ask(
        app,
        lambda keys: keys.insert_if_not_exists(name, secret, seconds),
        lambda keys: keys.insert(app, name, secret, ttl_seconds=seconds),
    )
    return _outcome(output, (app, name), "inserted", done=done, otherwise="a live key is already there")


@_command(
    "lapse keys put alpha:ABC123 device:XYZ789 --app 7 --ttl 15m",
    "lapse keys put alpha:ABC123 - --app 7 --ttl-seconds 900 < secret.txt",
)
def put(
    key: Key, value: Value, /, *, store: KeysOf = KeysOf(), life: Life = NO_TTL, output: OutputOption = Output.TABLE
) -> int:
    """Write a key; one that is there is replaced."""
    app, name = store.locate(key)
    seconds, secret = life.seconds(), value_from(value, "Value")
    store.ask(
        app,
        lambda keys: keys.put(name, secret, seconds),
        lambda keys: keys.put(app, name, secret, ttl_seconds=seconds),
    )
    return _outcome(output, (app, name), "put", done=True)


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
    store: KeysOf = KeysOf(),
    life: Life = NO_TTL,
    output: OutputOption = Output.TABLE,
) -> int:
    """Replace a value and restart its TTL, if it is the expected one.

    Of many callers that swap the same value at once, one succeeds. With - for both
    values, stdin holds the expected one on its first line and the new one on
    its second.
    """
    app, name = store.locate(key)
    seconds = life.seconds()
    before, then = values_from(expected, new, ("Expected value", "New value"))
    done = store.ask(
        app,
        lambda keys: keys.compare_and_swap(name, before, then, seconds),
        lambda keys: keys.swap(app, name, before, then, ttl_seconds=seconds),
    )
    return _outcome(output, (app, name), "swapped", done=done, otherwise=f"{_ABSENT} with the expected value")


@_command(
    "lapse keys touch alpha:ABC123 --app 7 --ttl 1h",
)
def touch(key: Key, /, *, store: KeysOf = KeysOf(), life: Life = NO_TTL, output: OutputOption = Output.TABLE) -> int:
    """Restart the TTL of a live key; its value stays."""
    app, name = store.locate(key)
    seconds = life.seconds()
    done = store.ask(
        app, lambda keys: keys.touch(name, seconds), lambda keys: keys.touch(app, name, ttl_seconds=seconds)
    )
    return _outcome(output, (app, name), "touched", done=done, otherwise=_ABSENT)


@_command(
    "lapse keys delete alpha:ABC123 --app 7",
    "lapse keys delete alpha:ABC123 --app 7 --if-value device:NEW",
)
def delete(
    key: Key,
    /,
    *,
    store: KeysOf = KeysOf(),
    if_value: Annotated[
        str | None,
        Parameter(metavar="VALUE", help="Only if this is the live value; - reads stdin.", allow_leading_hyphen=True),
    ] = None,
    yes: Yes = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Delete a live key.

    On a terminal you are asked first.
    """
    from lapse.keys.view import address_of

    app, name = store.locate(key)
    expected = None if if_value is None else value_from(if_value, "Expected value")
    confirm(f"Delete {address_of(app, name)}", yes=yes)
    done = store.ask(
        app,
        lambda keys: keys.delete(name) if expected is None else keys.compare_and_delete(name, expected),
        lambda keys: keys.delete(app, name, expected=expected),
    )
    absent = _ABSENT if expected is None else f"{_ABSENT} with the expected value"
    return _outcome(output, (app, name), "deleted", done=done, otherwise=absent)


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


def _listed(keys: AppKeys, prefix: str, after: str | None, limit: int) -> ViewPage[KeyView]:
    """Return so many keys behind one, 0 for all; one more is read, to know whether there are more."""
    from lapse.engine.view import ViewPage
    from lapse.keys.view import view_of

    items: list[Item] = []
    while not limit or len(items) <= limit:
        size = min(limit + 1 - len(items), MAX_SCAN_LIMIT) if limit else MAX_SCAN_LIMIT
        page = keys.scan(prefix, items[-1].key if items else after, size)
        items += page
        if len(page) < size:
            break
    shown, now = items[:limit] if limit else items, SystemClock.wall_ns()
    views = [view_of(keys.app_id, one, now) for one in shown]
    return ViewPage(views, shown[-1].key if len(items) > len(shown) else None)


def _without_value(view: KeyView) -> KeyView:
    from msgspec import UNSET
    from msgspec.structs import replace

    return replace(view, value=UNSET)


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
