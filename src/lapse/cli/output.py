"""Output of commands: results on stdout (a table for people, JSON or YAML for programs), everything else on stderr.

Guarantees: with ``-o json`` or ``-o yaml`` stdout holds exactly one document, and a list is always ``items`` and
``next``; what a command did is told on stdout too, so that it can be kept; a table on a pipe or in a file is plain text
that never shortens a cell; on a terminal nothing is cut either. Characters that could steer a terminal are
shown as escapes in tables and messages, and in everything else on a terminal; a bare value on a pipe or in a file is as
it is. Not guaranteed: that the layout of a table, or the sentence that tells what was done, stays the same; programs
read documents.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

from cyclopts import Parameter
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lapse.core.errors import LapseError, UsageError
from lapse.core.text import printable

if TYPE_CHECKING:
    from lapse.engine.view import Columns, Moment, ViewPage


class ExitCode(IntEnum):
    """What the process tells its caller."""

    DONE = 0
    FAILED = 1
    PENDING = 2
    PARTLY = 3
    USAGE = 64
    INTERRUPTED = 130  # 128 + SIGINT, as shells do it
    PIPE_CLOSED = 141  # 128 + SIGPIPE


class OutputError(LapseError):
    """The result cannot be written to stdout: {problem}."""


class YAMLOutputError(UsageError):
    """YAML needs PyYAML, which is not installed: run pip install 'lapse[kubernetes]', or use -o json."""


class Output(Enum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"

    @property
    def for_programs(self) -> bool:
        """Whether it is a document, and no table."""
        return self is not Output.TABLE


OutputOption = Annotated[
    Output, Parameter(name=["--output", "-o"], metavar="FORMAT", help="For people or for programs.", show_default=True)
]


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Let `lapse.cli.main` end the program: rich would end it by itself, with an exit code of its own."""
        raise BrokenPipeError


def stdout() -> Console:
    """Return a console on stdout as it is now; NO_COLOR and whether it is a terminal are respected by rich."""
    return _Console(highlight=False, emoji=False, markup=False)


def stderr() -> Console:
    """Return a console on stderr as it is now."""
    return _Console(stderr=True, highlight=False, emoji=False, markup=False)


def message(text: str, *, style: str = "") -> None:
    """Tell a person something, on stderr. Lines are not wrapped, so that a program can search them."""
    console = stderr()
    for line in text.split("\n"):
        console.print(Text(printable(line), style), soft_wrap=True)


_PIECE: Final = 1024
"""At most 4096 bytes, which a pipe takes as a whole or not at all. Python without buffering (PYTHONUNBUFFERED) silently
drops the rest of a longer text when its reader goes away in the middle."""


def print_text(text: str, *, end: str = "\n") -> None:
    """Print a bare result and a newline: as it is, but on a terminal with an escape for what could steer it.

    A full disk is an error; a reader that has gone ends the program quietly.
    """
    if sys.stdout.isatty():
        text = printable(text.replace("\r\n", "\n"), keep="\n\t")
    try:
        for start in range(0, len(text), _PIECE):
            sys.stdout.write(text[start : start + _PIECE])
        sys.stdout.write(end)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(problem=error.strerror) from error


def print_document(output: Output, document: object) -> None:
    """Print one document for a program, views in it as well, as YAML or JSON."""
    from lapse.engine.view import to_json

    document = to_json(document)
    if output is Output.YAML:
        _print_yaml(document)
    else:
        _print_json(document)


def _print_json(document: Any) -> None:  # noqa: ANN401 - a document
    """Print JSON, indented on a terminal, on one line elsewhere."""
    if not sys.stdout.isatty():
        print_text(json.dumps(document, ensure_ascii=False))
        return
    text = json.dumps(document, ensure_ascii=False, indent=2)
    # What JSON need not escape and a terminal obeys (C1 controls, bidi marks) stands in strings only.
    print_text("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def _print_yaml(document: Any) -> None:  # noqa: ANN401 - a document
    """Print YAML, with the mark that begins a document, so that several that follow each other stay apart."""
    try:
        import yaml
    except ImportError:
        raise YAMLOutputError from None
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, explicit_start=True, width=1000)
    print_text(text.removesuffix("\n").removesuffix("\n..."))


def print_page(
    output: Output,
    page: ViewPage[Any],
    columns: Columns,
    now: int = 0,
    *,
    none: str,
    more: str = "There are more; --limit 0 shows all.",
    styles: Mapping[Any, str] | None = None,
) -> None:
    """Print a list: ``items`` and ``next`` for programs, a table for people; that there are none or more on stderr."""
    if output.for_programs:
        print_document(output, page)
    elif page.items:
        print_views(page.items, columns, now, styles=styles)
        if page.next is not None:
            message(more)
    else:
        message(none)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, styles: Mapping[Any, str] | None = None
) -> None:
    """Print rows under headings: framed on a terminal, plain and complete elsewhere.

    On a terminal that is too narrow, two columns are folded; more are plain lines, so that an address stays in one
    piece and can be copied. ``styles`` gives cells with certain texts a style on a terminal.
    """
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    console = stdout()
    if console.is_terminal and (len(columns) <= _FOLDED or _width([columns, *cells]) <= console.width):
        console.print(_framed(columns, cells, styles or {}))
    else:
        print_text("\n".join(_aligned([[column.upper() for column in columns], *cells])))


def print_views(
    views: Iterable[object], columns: Columns, now: int = 0, *, styles: Mapping[Any, str] | None = None
) -> None:
    """Print views as a table, as they are seen at ``now``."""
    from lapse.engine.view import row

    print_table(list(columns), [row(one, columns, now) for one in views], styles=styles)


_FOLDED: Final = 2
"""Columns of a table that reads well when its cells are folded: a fact and what is told of it."""


def _width(rows: Sequence[Sequence[str]]) -> int:
    """Return how wide a framed table is: each cell has a border and two spaces."""
    return sum(max(map(cell_len, column)) + 3 for column in zip(*rows, strict=True)) + 1


def _framed(columns: Sequence[str], rows: Iterable[Sequence[str]], styles: Mapping[Any, str]) -> Table:
    table = Table(header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, styles.get(cell, "")) for cell in row))
    return table


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    # By hand, not by rich: on a pipe rich assumes 80 columns and folds, and it takes a second for 10,000 rows.
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(padded).rstrip()


def print_result(output: Output, result: object, said: str) -> None:
    """Print what a command did: a document for programs, a sentence for people, which a pipe gets as well."""
    if output.for_programs:
        print_document(output, result)
    else:
        print_text(printable(said, keep="\n"))


def print_link(output: Output, url: str, *, expires_at: Moment, within: str, browser: bool) -> None:
    """Print an address that works once within a time, and open it in a browser if that is asked for."""
    if output.for_programs:
        print_document(output, {"url": url, "expires_at": expires_at})
    else:
        print_text(url)
        message(f"It works once, within {within}.")
    if browser:
        import webbrowser

        webbrowser.open(url)
