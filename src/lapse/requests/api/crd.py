"""CustomResourceDefinitions of our kinds, made from the types and rules that the validators use too.

``python -m lapse.requests.api.crd FOLDER`` writes them, one file each, with a Kustomization that lists them; a test
demands that those in the repository are what this writes.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lapse.requests.api.annotations import EXPIRES_AT
from lapse.requests.api.conditions import READY
from lapse.requests.api.kinds import OUR_KINDS
from lapse.requests.api.rules import RULES, Rule
from lapse.requests.api.schema import schema_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.kube.resources import Json, Kind

CATEGORY: Final = "lapse"
"""``kubectl get lapse`` lists all that is ours."""


def _column(name: str, path: str, kind: str = "string") -> Json:
    return {"name": name, "type": kind, "jsonPath": path}


def _annotation(name: str) -> str:
    return ".metadata.annotations." + name.replace(".", r"\.")


_READY: Final = (
    _column("Ready", f".status.conditions[?(@.type=='{READY}')].status"),
    _column("Reason", f".status.conditions[?(@.type=='{READY}')].reason"),
)
# As text: kubectl prints a date as the time since, and has no words for one that is still to come.
_EXPIRES: Final = _column("Expires", _annotation(EXPIRES_AT))
_AGE: Final = _column("Age", ".metadata.creationTimestamp", "date")
_COLUMNS: Final[dict[str, tuple[Json, ...]]] = {
    "VolumeCaptureRequest": (
        _column("Mode", ".spec.mode"),
        _column("Target", ".spec.target.name"),
        *_READY,
        _EXPIRES,
        _AGE,
    ),
    "VolumeRestoreRequest": (
        _column("Source", ".spec.sourceRef.name"),
        _column("Claim", ".spec.pvcTemplate.metadata.name"),
        *_READY,
        _EXPIRES,
        _AGE,
    ),
    "ManifestCaptureRequest": (_column("Checkpoint", ".status.checkpointName"), *_READY, _EXPIRES, _AGE),
    "ManifestCheckpoint": (
        _column("Objects", ".status.totalObjects", "integer"),
        _column("Bytes", ".status.totalSizeBytes", "integer"),
        *_READY,
        _AGE,
    ),
    "ManifestCheckpointContentChunk": (
        _column("Checkpoint", ".spec.checkpointName"),
        _column("Index", ".spec.index", "integer"),
        _column("Objects", ".spec.objectsCount", "integer"),
        _AGE,
    ),
    "ObjectKeeper": (
        _column("Mode", ".spec.mode"),
        _column("Follows", ".spec.followObjectRef.name"),
        _column("TTL", ".spec.ttl"),
        _column("Phase", ".status.phase"),
        _column("Expires", ".status.expiresAt"),
        _AGE,
    ),
}


def crd(kind: Kind[Any]) -> Json:
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
        "additionalPrinterColumns": list(_COLUMNS[kind.kind]),
        "schema": {"openAPIV3Schema": _schema(kind)},
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


def _schema(kind: Kind[Any]) -> Json:
    schema = schema_of(kind.type)
    # Of these three the server has its own schema and allows no other.
    named: Json = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    schema["properties"] = named | schema["properties"]
    for rule in RULES[kind.kind]:
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


def main(folder: Path) -> None:
    """Write the definitions of all our kinds."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in OUR_KINDS:
        (folder / f"{kind.plural}.yaml").write_text(to_yaml(crd(kind)), encoding="utf-8")
    # The name without an ending, which kustomize knows as well: every *.yaml beside it is a definition.
    (folder / "Kustomization").write_text(to_yaml(_kustomization()), encoding="utf-8")


def _kustomization() -> Json:
    resources = sorted(f"{kind.plural}.yaml" for kind in OUR_KINDS)
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": resources}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
