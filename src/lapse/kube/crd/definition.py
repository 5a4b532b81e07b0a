"""CustomResourceDefinitions, made from the types and rules that the validators use too, and written as YAML."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from lapse.kube.crd.schema import schema_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from lapse.kube.crd.rules import Rule
    from lapse.kube.resources import Json, Kind

CATEGORY: Final = "lapse"
"""``kubectl get lapse`` lists all that is ours."""


def column(name: str, path: str, kind: str = "string") -> Json:
    """Return a column of ``kubectl get``."""
    return {"name": name, "type": kind, "jsonPath": path}


AGE: Final = column("Age", ".metadata.creationTimestamp", "date")


def definition(kind: Kind[Any], *, rules: Iterable[Rule], columns: Iterable[Json]) -> Json:
    """Return the definition of a kind."""
    names: Json = {
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "plural": kind.plural,
        "singular": kind.kind.lower(),
        "categories": [CATEGORY],
    }
    version: Json = {
        "name": kind.api_version.rpartition("/")[2],
        "served": True,
        "storage": True,
        "additionalPrinterColumns": list(columns),
        "schema": {"openAPIV3Schema": _schema(kind, rules)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "names": names | ({"shortNames": [kind.short]} if kind.short else {}),
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [version | ({"subresources": {"status": {}}} if kind.status else {})],
        },
    }


def _schema(kind: Kind[Any], rules: Iterable[Rule]) -> Json:
    schema = schema_of(kind.type)
    # Of these three the server has its own schema and allows no other.
    named: Json = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    schema["properties"] = named | schema["properties"]
    for rule in rules:
        _place(schema, rule).append({"rule": rule.cel, "message": rule.message})
    return schema


def _place(schema: Json, rule: Rule) -> list[Json]:
    for name in rule.at:
        schema = schema["properties"][name]
    found: list[Json] = schema.setdefault("x-kubernetes-validations", [])
    return found


# --- YAML -------------------------------------------------------------------------------------------------------------

# A writer of the little that a definition needs: a library of ours would be installed everywhere for one developer's
# command. Texts are JSON texts, which YAML reads too, unless they are plain words.
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9/._-]*")
_WORDS_WITH_A_MEANING: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def to_yaml(document: Json) -> str:
    """Write a document as YAML, in the order of its keys."""
    return "\n".join(_lines(document, "")) + "\n"


def _lines(value: object, indent: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _entry(f"{indent}{_scalar(name)}:", part, f"{indent}  ")
    elif isinstance(value, list):
        for part in value:
            first, *rest = _lines(part, f"{indent}  ") if isinstance(part, dict) else (f"{indent}  {_scalar(part)}",)
            yield f"{indent}- {first.lstrip()}"
            yield from rest


def _entry(head: str, value: object, indent: str) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        yield head
        yield from _lines(value, indent)
    else:
        yield f"{head} {_scalar(value)}"


def _scalar(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS_WITH_A_MEANING:
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def write(folder: Path, definitions: Iterable[Json]) -> None:
    """Write definitions, one file each, with a Kustomization that lists them."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for one in definitions:
        names.append(f"{one['spec']['names']['plural']}.yaml")
        (folder / names[-1]).write_text(to_yaml(one), encoding="utf-8")
    listing = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": sorted(names)}
    # The name without an ending, which kustomize knows as well: every *.yaml beside it is a definition.
    (folder / "Kustomization").write_text(to_yaml(listing), encoding="utf-8")
