"""The schema of a type: what Kubernetes calls a structural schema, made from a msgspec structure.

A field without a default is required; null is for fields whose type has a place for it. Names, bounds and enums come
from the type's annotations, descriptions from its docstring. A dictionary of anything is kept as it is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from msgspec import inspect

if TYPE_CHECKING:
    from lapse.kube.resources import Json

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
