"""Former names of commands and options: they work in this version, with a warning, and go with the next one.

What is typed is rewritten before it is read, so that help, completion and reference know one name for each thing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

Words = tuple[str, ...]
COMMANDS: Final[dict[Words, Words]] = {
    ("keys", "scan"): ("keys", "list"),
    ("keys", "ttl"): ("keys", "show"),
    ("requests", "get"): ("requests", "show"),
    ("retention", "status"): ("retention", "list"),
    ("workspaces", "ttl"): ("workspaces", "set"),
}
"""The command under its former name, and under the one that it has now."""
WITH_NAME: Final[dict[Words, Words]] = {("retention", "status"): ("retention", "show")}
"""The same, where it was given the name of a thing, and had another meaning then."""
OPTIONS: Final[dict[Words, dict[str, str]]] = {
    ("keys", "list"): {"--all": "--limit=0"},
    ("workspaces", "set"): {"--standby": "--standby-ttl", "--archive": "--archive-ttl"},
}
"""The former options of a command, by the name that it has now."""

_SWITCHES: Final = frozenset({"--cluster", "--help", "-h"})


def renewed(arguments: Sequence[str], warn: Callable[[str], None]) -> list[str]:
    """Return the arguments with the names of this version; ``warn`` is told each that was another."""
    words, rest = _split(arguments)
    if words in COMMANDS:
        meant = WITH_NAME[words] if words in WITH_NAME and _names_something(rest) else COMMANDS[words]
        warn(_told(f"lapse {' '.join(words)}", f"lapse {' '.join(meant)}"))
        words = meant
    former: dict[str, str] = OPTIONS.get(words, {})
    found: list[str] = []
    for place, word in enumerate(rest):
        if word == "--":
            return [*words, *found, *rest[place:]]
        name, equals, value = word.partition("=")
        if name in former:
            warn(_told(name, former[name]))
            name = former[name]
        found.append(f"{name}{equals}{value}")
    return [*words, *found]


def _names_something(rest: Sequence[str]) -> bool:
    """Whether an argument stands among options; an option takes the word behind it, unless it is a switch."""
    takes = False
    for word in rest:
        if takes:
            takes = False
        elif word == "-" or not word.startswith("-"):
            return True
        else:
            takes = "=" not in word and word not in _SWITCHES
    return False


def _told(former: str, name: str) -> str:
    return f"{former} is now {name}; the former name goes with the next version"


def _split(arguments: Sequence[str]) -> tuple[Words, list[str]]:
    """Return the longest beginning that names a command of the tables, and the rest."""
    known = {*COMMANDS, *OPTIONS}
    for length in range(min(len(arguments), max(map(len, known), default=0)), 0, -1):
        if tuple(arguments[:length]) in known:
            return tuple(arguments[:length]), list(arguments[length:])
    return (), list(arguments)
