"""Strict reading of documents that people write by hand: policies and records.

A store takes fields that it does not know, because a newer release may know them. In a file that somebody wrote, such
a field is more likely a typing error, and ``maxage`` for ``maxAge`` would be a limit that is not there. So every field
that is not known is an error here, and all errors of a document are named at once. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from lapse.core.errors import UsageError
from lapse.core.timestamps import from_timestamp
from lapse.kube.crd.rules import TIME_PATTERN
from lapse.kube.crd.schema import plain_problem, schema_of, shown
from lapse.kube.resources import Object, ObjectMeta
from lapse.objects.metadata_rules import annotation_problems, label_problems, name_problems

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.kube.resources import Json, Kind

    T = TypeVar("T", bound=Object)

_METADATA: Final = frozenset(ObjectMeta.__struct_encode_fields__) | {"generateName", "managedFields", "finalizers"}


class DocumentError(UsageError, ValueError):
    """{document} cannot be used: {problem}."""


class DocumentProblem(NamedTuple):
    """An error in a document, and its place."""

    place: str
    what: str

    def __str__(self) -> str:
        """Print both."""
        return f"{self.place}: {self.what}" if self.place else self.what


def read_document(kind: Kind[T], document: object) -> T:
    """Return an object of a kind; raises `DocumentError`, which names everything that is wrong with the document."""
    problems = list(problems_of(kind, document))
    if problems:
        raise DocumentError(document=f"The {kind.kind} {name_of(document)}", problem="; ".join(map(str, problems)))
    assert isinstance(document, dict)  # noqa: S101 - anything else is a problem
    return kind.convert(document)


def name_of(document: object) -> str:
    """Return what a document is called, as far as it can be told."""
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return shown(name) if isinstance(name, str) and name else "without a name"


def problems_of(kind: Kind[Any], document: object, *, named: bool = True) -> Iterator[DocumentProblem]:
    """Yield everything that is wrong with a document; ``named`` says whether it must have a name."""
    if (odd := plain_problem(document)) is not None:
        yield DocumentProblem(*odd)
        return
    if not isinstance(document, dict):
        yield DocumentProblem(
            "", f"it is not a document; expected apiVersion: {kind.api_version} and kind: {kind.kind}"
        )
        return
    given = document.get("apiVersion"), document.get("kind")
    if given != (kind.api_version, kind.kind):
        named_kind = "/".join(str(one) for one in given if one)
        found = f"it is {named_kind}" if named_kind else "it names no apiVersion and no kind"
        yield DocumentProblem("", f"{found}; expected apiVersion: {kind.api_version} and kind: {kind.kind}")
        return
    wrong = [*_metadata_problems(document.get("metadata"), named=named), *unknown_fields(document, _schema(kind))]
    for text in kind.validate(document, None):
        place, _, what = text.partition(": ")
        wrong.append(DocumentProblem(place, what))
    wrong += [] if wrong else _unusable_times(document, _schema(kind))
    yield from wrong or _unreadable(kind, document)


def _unreadable(kind: Kind[Any], document: Json) -> Iterator[DocumentProblem]:
    """Yield what no rule is about, such as null for a field that has another default."""
    metadata = document.get("metadata")
    try:
        kind.convert({**document, "metadata": metadata if isinstance(metadata, dict) else {}})
    except msgspec.ValidationError as error:
        yield DocumentProblem("", str(error))


def _unusable_times(value: object, schema: Json, at: str = "") -> Iterator[DocumentProblem]:
    """Yield times that have the form of one and cannot be stored: a year 9999, a 30th of February."""
    if isinstance(value, dict):
        for name, part in value.items():
            known: Json = schema.get("properties", {}).get(name, {})
            yield from _unusable_times(part, known, f"{at}.{name}" if at else name)
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _unusable_times(part, schema.get("items", {}), f"{at}[{index}]")
    elif isinstance(value, str) and schema.get("pattern") == TIME_PATTERN and from_timestamp(value) is None:
        yield DocumentProblem(at, f"{value} is not a time that can be kept; expected one after 1970 and before 2262")


def _metadata_problems(metadata: object, *, named: bool) -> Iterator[DocumentProblem]:
    if not isinstance(metadata, dict):
        if named or metadata is not None:
            yield DocumentProblem("metadata", "is required" if metadata is None else "must be of type object")
        return
    for name in metadata.keys() - _METADATA:
        yield DocumentProblem(f"metadata.{name}", _no_such_field(name, _METADATA))
    if metadata.get("name") is None:
        if named:
            yield DocumentProblem("metadata.name", "is required")
    else:
        yield from (DocumentProblem("", text) for text in name_problems(metadata["name"]))
    for text in (
        *label_problems(metadata.get("labels") or {}),
        *annotation_problems(metadata.get("annotations") or {}),
    ):
        yield DocumentProblem("", text)


@cache
def _schema(kind: Kind[Any]) -> Json:
    schema = schema_of(kind.type)
    schema["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {}}  # looked at by other rules
    return schema


def unknown_fields(value: object, schema: Json, at: str = "") -> Iterator[DocumentProblem]:
    """Yield fields that the schema does not have, with the ones that were probably meant."""
    before = f"{at}." if at else ""
    if isinstance(value, dict) and "properties" in schema:
        for name, part in value.items():
            known: Json | None = schema["properties"].get(name)
            if known is None:
                yield DocumentProblem(f"{before}{name}", _no_such_field(name, schema["properties"]))
            else:
                yield from unknown_fields(part, known, f"{before}{name}")
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from unknown_fields(part, schema.get("items", {}), f"{at}[{index}]")


def _no_such_field(name: object, known: object) -> str:
    names = sorted(known) if isinstance(known, Mapping | frozenset) else []
    close = get_close_matches(str(name).lower(), [one.lower() for one in names], n=1)
    meant = next((one for one in names if close and one.lower() == close[0]), None)
    return f"there is no such field; did you mean {meant}?" if meant else f"there is no such field: {', '.join(names)}"
