"""Input of commands beside their arguments: documents, values that are secret, and a person's yes.

Documents are YAML or JSON, one or several in a file or on stdin, as ``kubectl apply -f`` takes them. Nothing is
guessed: a moment stays text, a key that comes twice is an error, and so is whatever JSON has no word for. What is wrong
is one line with the file and the line in it. What is in the documents is for others to judge.

``-`` in place of a value reads it from stdin, so that a secret need not stand on a command line, where every user of
the machine can read it: all of it, without one newline at its end. On a terminal it is asked for without showing it.
Where two values are wanted, the first line is the one and the second line the other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from getpass import getpass
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from lapse.core.errors import LapseError, UsageError
from lapse.core.text import printable
from lapse.keys.errors import ValueTooLongError
from lapse.keys.validation import MAX_VALUE_BYTES

STDIN: Final = "-"
_AT_MOST: Final = 2 * (MAX_VALUE_BYTES + 1)  # two values and their newlines; so that an endless stream is no trap


class StdinNotTextError(UsageError):
    """What came from stdin is not UTF-8: it breaks at byte {position}. Encode binary data, for example as base64."""


class StdinLinesError(UsageError):
    """Two values were to be read from stdin, one line each; it has {lines}."""


def value_from(argument: str, what: str) -> str:
    """Return a value as given, or from stdin when it is ``-``."""
    if argument != STDIN:
        return argument
    if sys.stdin.isatty():
        return getpass(f"{what}: ", stream=sys.stderr)
    return _read().removesuffix("\n")


def values_from(first: str, second: str, what: tuple[str, str]) -> tuple[str, str]:
    """Return two values, each as given or from stdin."""
    if not (first == second == STDIN) or sys.stdin.isatty():
        return value_from(first, what[0]), value_from(second, what[1])
    lines = _read().removesuffix("\n").split("\n")
    if len(lines) != 2:  # noqa: PLR2004 - as many as are returned
        raise StdinLinesError(lines="one line" if len(lines) == 1 else f"{len(lines)} lines")
    return lines[0], lines[1]


def _read() -> str:
    content = sys.stdin.buffer.read(_AT_MOST + 1)
    if len(content) > _AT_MOST:
        raise ValueTooLongError(length=f"more than {_AT_MOST}", limit=MAX_VALUE_BYTES)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise StdinNotTextError(position=error.start) from None  # the cause would show the value


def says_yes(question: str, *, unasked: bool) -> bool:
    """Ask a person at a terminal, whose answer is no unless it is yes; ``unasked`` is the answer without a terminal."""
    if not sys.stdin.isatty():
        return unasked
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


Yes = Annotated[bool, Parameter(name=["--yes", "-y"], help="Do not ask.", negative=(), show_default=False)]
"""The option of every command that ends something."""


def confirm(what: str, *, yes: bool) -> None:
    """Ask a person at a terminal whether to do something; a program that calls has said what it wants."""
    if not yes and not says_yes(f"{what}?", unasked=True):
        raise NotConfirmedError(what=what)


class NotConfirmedError(LapseError):
    """{what}: nothing was done, because the answer was not yes. To do it without a question: --yes."""


_MOST_BYTES: Final = 4 << 20
_MOST_VALUES: Final = 200_000
"""A file of a few lines can say a value a million times over, by references to references."""
_DEEPEST: Final = 100
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"


class FileError(UsageError):
    """{file} cannot be read: {problem}."""


class YAMLMissingError(UsageError):
    """{file} is not JSON, and YAML needs PyYAML, which is not installed; run pip install 'lapse[kubernetes]'."""


def read_files(files: Iterable[str]) -> list[Any]:
    """Return all documents of all files in their order; raises `FileError`. ``-`` is stdin."""
    return [document for file in files for document in read_file(file)]


def read_file(file: str) -> list[Any]:
    """Return the documents of one file; raises `FileError`, also when there are none."""
    named = "stdin" if file == STDIN else file or "''"
    text = _text(file, named)
    try:
        found = [json.loads(text)]
    except ValueError:
        found = list(_yaml(text, named))
    except RecursionError:
        raise FileError(file=named, problem="it is nested too deep") from None
    documents = [one for one in found if one is not None]
    if not documents:
        raise FileError(file=named, problem="there is no document in it")
    plain = _Plain(named)
    return [plain.value(one) for one in documents]


def _text(file: str, named: str) -> str:
    try:
        if file == STDIN:
            content = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with Path(file).open("rb") as source:
                content = source.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise FileError(file=named, problem=f"it has more than {_MOST_BYTES >> 20} MiB")
        return content.decode()
    except OSError as error:
        problem = error.strerror or "no such file"
        # A misspelt option is taken for a file, because - is one.
        raise FileError(
            file=named, problem=f"{problem}, and it is not an option" if named[0] == "-" else problem
        ) from error
    except ValueError as error:  # a null character in the name of the file, or no UTF-8 in it
        problem = "it is not text in UTF-8" if isinstance(error, UnicodeDecodeError) else "no such file"
        raise FileError(file=ascii(named)[1:-1], problem=problem) from error


def _yaml(text: str, named: str) -> Iterator[Any]:
    try:
        import yaml
    except ImportError:
        raise YAMLMissingError(file=named) from None

    class Loader(yaml.SafeLoader):
        """Takes moments as text, and no key twice."""

        yaml_implicit_resolvers: Any = {  # noqa: RUF012 - the name and the form are PyYAML's
            first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002 - as PyYAML has it
            seen = set()
            for key, _ in node.value:
                name = key.value if isinstance(key.value, str) else id(key)  # a key may be a list, which PyYAML refuses
                if name in seen and key.tag != "tag:yaml.org,2002:merge":
                    raise yaml.constructor.ConstructorError(
                        problem=f"{key.value!r} comes twice", problem_mark=key.start_mark
                    )
                seen.add(name)
            return super().construct_mapping(node, deep=deep)

    try:
        yield from yaml.load_all(text, Loader=Loader)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        problem = getattr(error, "problem", None) or "a character that YAML does not allow"
        raise FileError(file=named, problem=f"{where}{problem}") from None
    except RecursionError:
        raise FileError(file=named, problem="it is nested too deep") from None


class _Plain:
    """Makes sure that there is nothing but what JSON can say, and not too much of it."""

    def __init__(self, named: str) -> None:
        self._named, self._count = named, 0

    def value(self, found: Any, depth: int = 0) -> Any:  # noqa: ANN401 - whatever was read
        """Return a copy that refers to nothing twice."""
        self._count += 1
        if self._count > _MOST_VALUES or depth > _DEEPEST:
            raise FileError(file=self._named, problem="it is too large, or nested too deep")
        match found:
            case dict():
                return {self._key(key): self.value(part, depth + 1) for key, part in found.items()}
            case list():
                return [self.value(part, depth + 1) for part in found]
            case float() if found - found != 0:
                raise FileError(file=self._named, problem=f"{found} is not a number that JSON knows")
            case None | str() | bool() | int() | float():
                return found
        raise FileError(file=self._named, problem=f"{type(found).__name__} is not a type that JSON knows")

    def _key(self, key: object) -> str:
        if not isinstance(key, str):
            raise FileError(file=self._named, problem=f"{key!r} is a key, and keys are texts: write it in quotes")
        return key
