"""Validators: what the embedded store asks before it stores a document of ours.

They judge as a Kubernetes API server judges by our CRDs, by the same schema and the same rules; one table of documents
runs against both. A problem names its place and what was expected there.

Metadata is the store's own business. Fields that the schema does not know are no problem: a server drops them, the
embedded store keeps them. Null counts as absent. A server also makes 2 of 2.0; here that is a problem, because the
embedded store keeps documents as they were written.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from lapse.kube.crd.rules import TIME_PATTERN
from lapse.kube.crd.schema import schema_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.kube.crd.rules import Rule
    from lapse.kube.resources import Json, Problems, Validate

_TIME: Final = "must be a time in the form 2026-01-31T12:00:00Z, with a time zone"
_INT64: Final = range(-(2**63), 2**63)
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list, tuple),
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
}


def validator(structure: type[Any], rules: tuple[Rule, ...]) -> Validate:
    """Return what judges documents of a kind, by its structure and its rules."""

    # The schema is made on first use: most processes that import the kinds never validate.
    @cache
    def schema() -> Json:
        return schema_of(structure)

    def validate(new: Json, old: Json | None) -> Problems:
        # A rule may rely on what the schema demands, so it is asked only about documents of the right shape.
        return [*_object(new, schema(), "")] or [*_rule_problems(rules, new, old)]

    return validate


# --- shape ------------------------------------------------------------------------------------------------------------


def _value(value: object, schema: Json, at: str) -> Iterator[str]:
    if schema.get("x-kubernetes-int-or-string"):
        expected: tuple[type, ...] = (int, str)
        named = "integer or string"
    else:
        expected, named = _TYPES[schema["type"]], schema["type"]
    if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
        yield f"{at}: must be of type {named}"
    elif isinstance(value, dict):
        yield from _object(value, schema, at)
    elif isinstance(value, list | tuple):
        yield from _list(value, schema, at)
    elif isinstance(value, str):
        yield from _text(value, schema, at)
    elif isinstance(value, int):
        yield from _number(value, schema, at)


def _object(value: Json, schema: Json, at: str) -> Iterator[str]:
    before = f"{at}." if at else ""
    properties: Json = schema.get("properties", {})
    rest: Json | None = schema.get("additionalProperties")
    yield from (f"{before}{name}: is required" for name in schema.get("required", ()) if value.get(name) is None)
    for name, part in value.items():
        known = properties.get(name, rest)
        # A field may be null, and counts as absent; a value of a map may not.
        if known is not None and (part is not None or known is rest):
            yield from _value(part, known, before + name)


def _list(value: list[Any] | tuple[Any, ...], schema: Json, at: str) -> Iterator[str]:
    least, most = schema.get("minItems", 0), schema.get("maxItems", len(value))
    if not least <= len(value) <= most:
        yield f"{at}: must have " + (f"at least {least} items" if len(value) < least else f"at most {most} items")
    for index, item in enumerate(value):
        yield from _value(item, schema["items"], f"{at}[{index}]")
    for name in schema.get("x-kubernetes-list-map-keys", ()):
        found = Counter(str(item.get(name)) for item in value if isinstance(item, dict))
        yield from (f"{at}: must have one item at most with {name} {one}" for one, times in found.items() if times > 1)


def _number(value: int, schema: Json, at: str) -> Iterator[str]:
    if value < schema.get("minimum", value):
        yield f"{at}: must be at least {schema['minimum']}"
    if value > schema.get("maximum", value):
        yield f"{at}: must be at most {schema['maximum']}"
    if value not in _INT64:
        yield f"{at}: must fit into 64 bits"


def _text(value: str, schema: Json, at: str) -> Iterator[str]:
    least, most = schema.get("minLength", 0), schema.get("maxLength", len(value))
    if len(value) < least:
        yield f"{at}: must have at least {least} characters"
    if len(value) > most:
        yield f"{at}: must have at most {most} characters, not {len(value)}"
    if value not in schema.get("enum", (value,)):
        yield f"{at}: must be one of {', '.join(schema['enum'])}"
    if "pattern" in schema and not _matches(schema["pattern"], value):
        expected = _TIME if schema["pattern"] == TIME_PATTERN else f"must match {schema['pattern']}"
        yield f"{at}: {expected}"


def _matches(pattern: str, value: str) -> bool:
    # To Python, `$` also stands before a newline at the end; to Kubernetes it does not.
    return re.fullmatch(pattern.removeprefix("^").removesuffix("$"), value) is not None


# --- rules ------------------------------------------------------------------------------------------------------------


def _rule_problems(rules: tuple[Rule, ...], new: Json, old: Json | None) -> Iterator[str]:
    for rule in rules:
        value, earlier = _at(new, rule.at), _at(old, rule.at)
        if value is None or (rule.about_changes and earlier is None):
            continue
        if not rule.holds(value, earlier):
            yield f"{'.'.join(rule.at)}: {rule.message}" if rule.at else rule.message


def _at(document: Json | None, place: tuple[str, ...]) -> Any:  # noqa: ANN401 - whatever stands there
    value: Any = document
    for name in place:
        value = None if value is None else value.get(name)
    return value
