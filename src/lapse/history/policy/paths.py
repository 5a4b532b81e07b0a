"""Field paths: ``status.phase``, ``metadata.labels['app.kubernetes.io/name']``, ``spec.containers[0].image``.

Parsed once, when a policy is read, and then asked about many documents. A path that a document does not have is no
error: the document has no such value, and what that means is for the decision to say. There are no wildcards and no
filters, because a path names one value; and no escapes within quotes, because no field of Kubernetes needs them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lapse.core.errors import UsageError
from lapse.core.timestamps import from_timestamp

if TYPE_CHECKING:
    from lapse.core.clock import UnixNs
    from lapse.kube.resources import Json

LONGEST: Final = 512
_NAME: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")
_QUOTED: Final = re.compile(r"""\[(?:'([^']+)'|"([^"]+)")\]""")
_NUMBER: Final = re.compile(r"\[(0|[1-9][0-9]{0,8})\]")
_METADATA: Final = "metadata"


class FieldPathError(UsageError, ValueError):
    """{text!r} is not a field path: {problem}.

    Expected names with dots between them, as in status.phase; odd names in brackets, as in metadata.labels['a.b/c'];
    items of lists by number, as in spec.containers[0].name.
    """


@dataclass(frozen=True, slots=True)
class FieldPath:
    """The way to one value of a document."""

    steps: tuple[str | int, ...]

    @classmethod
    def parse(cls, text: str) -> FieldPath:
        """Read a path; raises `FieldPathError`, which says where it stopped."""
        return cls(_parse(text))

    @property
    def is_metadata(self) -> bool:
        """Whether the metadata of an object is enough to follow it."""
        return self.steps[0] == _METADATA

    def __str__(self) -> str:
        """Print the canonical form, which parses back to an equal path."""
        return "".join(map(_printed, self.steps)).removeprefix(".")

    def value(self, document: Json) -> object:
        """Return what stands there; None when nothing does."""
        found: Any = document
        try:
            for step in self.steps:
                if step.__class__ is int and not isinstance(found, list):  # a text has items as well, but no fields
                    return None
                found = found[step]
        except (KeyError, IndexError, TypeError):
            return None
        return found

    def text(self, document: Json) -> str | None:
        """Return the value as text, a boolean or a number as JSON writes it; None when it is neither of these."""
        return as_text(self.value(document))

    def moment(self, document: Json) -> UnixNs | None:
        """Return the value as a moment; None when it is none, or cannot be read as one."""
        found = self.value(document)
        return from_timestamp(found) if isinstance(found, str) else None


def as_text(value: object) -> str | None:
    """Return a scalar as policies write it in their lists; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int | float) else None


def _printed(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    if _NAME.fullmatch(step):
        return f".{step}"
    return f'["{step}"]' if "'" in step else f"['{step}']"


def _parse(text: str) -> tuple[str | int, ...]:
    if len(text) > LONGEST:
        raise FieldPathError(text=f"{text[:20]}...", problem=f"it has {len(text)} characters, {LONGEST} are the most")
    if not text:
        raise FieldPathError(text=text, problem="it is empty")
    steps: list[str | int] = []
    at = 0
    while at < len(text):
        step, at = _step(text, at, first=not steps)
        steps.append(step)
    if not isinstance(steps[0], str):
        raise FieldPathError(text=text, problem="it begins with the number of an item, and a document is not a list")
    return tuple(steps)


def _step(text: str, at: int, *, first: bool) -> tuple[str | int, int]:
    """Return the step that begins at a place, and the place behind it."""
    if text[at] == "[":
        if quoted := _QUOTED.match(text, at):
            return quoted[1] or quoted[2], quoted.end()
        if number := _NUMBER.match(text, at):
            return int(number[1]), number.end()
        raise FieldPathError(text=text, problem=f"{text[at:]!r} is neither a name in quotes and brackets nor a number")
    if not first:
        if text[at] != ".":
            raise FieldPathError(text=text, problem=f"there is no dot before {text[at:]!r}")
        at += 1
    name = _NAME.match(text, at)
    if name is None:
        rest = text[at:]
        raise FieldPathError(
            text=text, problem=f"{rest!r} does not begin with a name" if rest else "it ends with a dot"
        )
    return name[0], name.end()
