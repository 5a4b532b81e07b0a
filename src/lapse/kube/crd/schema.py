"""Structural schemas of Kubernetes, made from msgspec structures, and the check of what a document may hold.

A field without a default is required; null is for fields whose type has a place for it. Names, bounds and enums come
from the type's annotations, descriptions from its docstring. A dictionary of anything is kept as it is.

Documents that people write hold what JSON can say and a store can keep. Readers of YAML, TOML and JSON let more
through: dates that became objects, NaN, numbers of any length, halves of characters, keys that are no text, and nesting
without end. Everything behind them would fail on these, each in its own way; so they are refused once, where a document
enters. Pure.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import inspect

if TYPE_CHECKING:
    from lapse.kube.resources import Json

DEEPEST: Final = 100
_INT64: Final = range(-(2**63), 2**63)


def plain_problem(document: object) -> tuple[str, str] | None:
    """Return the first place that no store could keep, and what is wrong there; None when there is none."""
    waiting: list[tuple[str, object, int]] = [("", document, 0)]
    while waiting:
        place, value, depth = waiting.pop()
        if depth > DEEPEST:
            return shown(place)[:80], f"it is nested deeper than {DEEPEST} levels"
        if (problem := _scalar_problem(value)) is not None:
            return shown(place), problem
        if isinstance(value, dict):
            for key, part in value.items():
                if not isinstance(key, str) or shown(key) != key:
                    return shown(place), f"{ascii(key)[:80]} is a key, and keys are texts in Unicode"
                waiting.append((f"{place}.{key}" if place else key, part, depth + 1))
        elif isinstance(value, list | tuple):
            waiting += [(f"{place}[{number}]", part, depth + 1) for number, part in enumerate(value)]
    return None


def shown(text: str) -> str:
    """Return a text that can be printed and sent: halves of characters become question marks."""
    return text.encode("utf-8", "replace").decode()


def _scalar_problem(value: object) -> str | None:
    match value:
        case str():
            return None if shown(value) == value else "it holds half of a character (a lone surrogate)"
        case bool() | None | dict() | list() | tuple():
            return None
        case int():
            return None if value in _INT64 else "it is a whole number that does not fit into 64 bits"
        case float():
            return None if math.isfinite(value) else f"{value} is not a number that JSON knows"
    return f"it is a {type(value).__name__}, which JSON does not know; write it as text, in quotes"


_WITHOUT = "without"  # in an annotation: fields of the type that do not exist here
_SCALARS: dict[type[inspect.Type], Json] = {
    inspect.StrType: {"type": "string"},
    inspect.IntType: {"type": "integer", "format": "int64"},
    inspect.BoolType: {"type": "boolean"},
}


def schema_of(structure: type[Any]) -> Json:
    """Return the schema of a kind's structure, without metadata: every store has its own rules for that."""
    schema = _schema(inspect.type_info(structure))
    del schema["properties"]["metadata"]
    schema["required"].remove("metadata")
    if not schema["required"]:
        del schema["required"]
    return schema


def _schema(found: inspect.Type) -> Json:
    match found:
        case inspect.Metadata():
            return _bounded(_schema(found.type), dict(found.extra_json_schema or {}))
        case inspect.StructType():
            return _structure(found)
        case inspect.VarTupleType():
            return {"type": "array", "items": _schema(found.item_type)}
        case inspect.DictType():
            return {"type": "object"} | _values(found.value_type)
        case inspect.UnionType():
            return _union(found)
        case _:
            return dict(_SCALARS[type(found)])


def _values(found: inspect.Type) -> Json:
    if isinstance(found, inspect.AnyType):
        return {"x-kubernetes-preserve-unknown-fields": True}
    return {"additionalProperties": _schema(found)}


def _bounded(schema: Json, bounds: Json) -> Json:
    for name in cast("list[str]", bounds.pop(_WITHOUT, [])):
        del schema["properties"][name]
    return schema | bounds


def _structure(found: inspect.StructType) -> Json:
    schema: Json = {
        "type": "object",
        "description": _description(found.cls),
        "properties": {one.encode_name: _schema(one.type) for one in found.fields},
    }
    required = [one.encode_name for one in found.fields if one.required]
    return schema | {"required": required} if required else schema


def _union(found: inspect.UnionType) -> Json:
    several = [one for one in found.types if not isinstance(one, inspect.NoneType)]
    if len(several) == 1:
        return _schema(several[0])
    if {type(one) for one in several} == {inspect.IntType, inspect.StrType}:
        return {"x-kubernetes-int-or-string": True}
    raise TypeError(f"{found} has no structural schema")


def _description(structure: type[Any]) -> str:
    """Return what a docstring says, as one line that names fields as documents do."""
    text = " ".join((structure.__doc__ or "").split())
    return re.sub(r"``(\w+)``", lambda name: re.sub(r"_(\w)", lambda at: at[1].upper(), name[1]), text)
