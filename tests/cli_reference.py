"""Writes the usage and the options of every command into docs/reference/cli.md, from the help that the command prints.

    .venv/bin/python -m tests.cli_reference

Everything else on the page is written by hand. A command without a section is named; a test holds page and help
together.
"""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import redirect_stdout

from tests.markdown import REFERENCE

PAGE = REFERENCE / "cli.md"
# An option begins within the first few columns of its box; what follows further right is its description.
OPTION = re.compile(r"^│ (?:\*  |   )?(--[a-z][a-z-]*)\b", re.MULTILINE)
SECTION = re.compile(r"(?<=^### )lapse [a-z -]+$", re.MULTILINE)


def main() -> int:
    """Rewrite the page."""
    os.environ["COLUMNS"] = "120"
    text = PAGE.read_text()
    for title in SECTION.findall(text):
        text = _rewritten(text, title)
    PAGE.write_text(text)
    return 0


def _rewritten(text: str, title: str) -> str:
    start = text.index(f"### {title}\n")
    end = re.search(r"^#{1,3} ", text[start + 4 :], re.MULTILINE)
    stop = len(text) if end is None else start + 4 + end.start()
    help_text = _help(title.split()[1:])
    usage = re.search(r"^Usage: (.*)$", help_text, re.MULTILINE)
    if usage is None:
        return text
    options = ", ".join(f"`{one}`" for one in OPTION.findall(help_text))
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
