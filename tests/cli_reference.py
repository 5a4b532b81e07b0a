"""Writes the usage and the options of every command into docs/reference/cli.md, from the help that the command prints.

    .venv/bin/python -m tests.cli_reference

The table of former names is written as well, everything else on the page by hand. A command without a section is named;
a test holds page and help together.
"""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import redirect_stdout

from lapse.cli.former_names import COMMANDS, OPTIONS, WITH_NAME
from tests.markdown import REFERENCE

PAGE = REFERENCE / "cli.md"
# An option begins within the first few columns of its box; what follows further right is its description.
OPTION = re.compile(r"^│ (?:\*  |   )?(--[a-z][a-z-]*)\b", re.MULTILINE)
SECTION = re.compile(r"(?<=^### )lapse [a-z -]+$", re.MULTILINE)
FORMER_NAMES = re.compile(r"^(\| former name \| name \|\n\|---\|---\|\n)(?:\|.*\n)*", re.MULTILINE)


def main() -> int:
    """Rewrite the page."""
    os.environ["COLUMNS"] = "120"
    text = PAGE.read_text()
    for title in SECTION.findall(text):
        text = _rewritten(text, title)
    text = FORMER_NAMES.sub(lambda found: found[1] + former_names(), text)
    PAGE.write_text(text)
    return 0


def former_names() -> str:
    """Return the rows of the table of former names."""
    rows = [(f"lapse {' '.join(former)}", f"lapse {' '.join(name)}") for former, name in COMMANDS.items()]
    rows += [(f"lapse {' '.join(former)} NAME", f"lapse {' '.join(name)} NAME") for former, name in WITH_NAME.items()]
    for command, options in OPTIONS.items():
        rows += [(f"lapse {' '.join(command)} {former}", name) for former, name in options.items()]
    return "".join(f"| `{former}` | `{name}` |\n" for former, name in rows)


def _rewritten(text: str, title: str) -> str:
    start = text.index(f"### {title}\n")
    end = re.search(r"^#{1,3} ", text[start + 4 :], re.MULTILINE)
    stop = len(text) if end is None else start + 4 + end.start()
    help_text = _help(title.split()[1:])
    usage = re.search(r"^Usage: (.*)$", help_text, re.MULTILINE)
    if usage is None:
        return text
    options = ", ".join(f"`{one}`" for one in OPTION.findall(help_text)) or "none"
    body = re.sub(
        r"```text\nlapse .*?\n```", f"```text\n{usage[1].rstrip()}\n```", text[start:stop], count=1, flags=re.DOTALL
    )
    body = re.sub(r"^Options: .*\.$", f"Options: {options}.", body, count=1, flags=re.MULTILINE)
    return text[:start] + body + text[stop:]


def _help(command: list[str]) -> str:
    from lapse.cli import main as lapse

    printed = io.StringIO()
    with redirect_stdout(printed):
        lapse([*command, "--help"])
    return printed.getvalue()


if __name__ == "__main__":
    sys.exit(main())
