"""The rules of Kubernetes for names, labels, annotations and owner references, in its own words.

Pure. Each function returns what is wrong, one clause each, with what was expected. Not checked: finalizers, which the
embedded store does not have, and anything beyond metadata, which is the business of `Kind.validate`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.kube.resources import Json

_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAMESPACE: Final = re.compile(_LABEL)
_NAME_PART: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LONGEST_SUBDOMAIN: Final = 253
_LONGEST_LABEL: Final = 63
_MOST_ANNOTATIONS: Final = 256 * 1024
_SUBDOMAIN_WORDS: Final = (
    "at most 253 lower case letters, digits, '-' and '.', and a letter or digit at both ends of every part"
)
_NAMESPACE_WORDS: Final = "at most 63 lower case letters, digits and '-', and a letter or digit at both ends"
_VALUE_WORDS: Final = "at most 63 letters, digits, '-', '_' and '.', and a letter or digit at both ends, or nothing"
_KEY_WORDS: Final = "an optional DNS name and '/', then 1 to 63 letters, digits, '-', '_' and '.'"
_REFERENCE_FIELDS: Final = ("apiVersion", "kind", "name", "uid")


def name_problems(name: object) -> Iterator[str]:
    """Judge the name of an object."""
    if not isinstance(name, str) or not _is_subdomain(name):
        yield f"metadata.name is {_shown(name)}; expected {_SUBDOMAIN_WORDS}"


def namespace_problems(namespace: object, *, namespaced: bool) -> Iterator[str]:
    """Judge the namespace of an object, or its absence."""
    if not namespaced:
        if namespace:
            yield f"metadata.namespace is {_shown(namespace)}; expected none, as this kind has no namespaces"
    elif not namespace:
        yield "metadata.namespace is missing; expected one, as this kind lives in namespaces"
    elif not _is_namespace(namespace):
        yield f"metadata.namespace is {_shown(namespace)}; expected {_NAMESPACE_WORDS}"


def label_problems(labels: object) -> Iterator[str]:
    """Judge labels."""
    yield from _text_problems("metadata.labels", labels)
    for key, value in _texts(labels):
        if not _is_qualified(key):
            yield f"metadata.labels has the key {_shown(key)}; expected {_KEY_WORDS}"
        if value and (len(value) > _LONGEST_LABEL or not _NAME_PART.fullmatch(value)):
            yield f"metadata.labels[{key!r}] is {_shown(value)}; expected {_VALUE_WORDS}"


def annotation_problems(annotations: object) -> Iterator[str]:
    """Judge annotations."""
    yield from _text_problems("metadata.annotations", annotations)
    size = 0
    for key, value in _texts(annotations):
        size += len(key.encode()) + len(value.encode())
        if not _is_qualified(key.lower()):
            yield f"metadata.annotations has the key {_shown(key)}; expected {_KEY_WORDS}"
    if size > _MOST_ANNOTATIONS:
        yield f"metadata.annotations have {size} bytes; expected at most {_MOST_ANNOTATIONS}"


def owner_problems(references: object) -> Iterator[str]:
    """Judge owner references."""
    if not isinstance(references, list):
        yield f"metadata.ownerReferences is {_shown(references)}; expected an array"
        return
    controllers = 0
    for number, reference in enumerate(references):
        place = f"metadata.ownerReferences[{number}]"
        if not isinstance(reference, dict):
            yield f"{place} is {_shown(reference)}; expected an object"
            continue
        for name in _REFERENCE_FIELDS:
            if not isinstance(reference.get(name), str) or not reference[name]:
                yield f"{place}.{name} is {_shown(reference.get(name))}; expected text that is not empty"
        controllers += reference.get("controller") is True
    if controllers > 1:
        yield f"metadata.ownerReferences name {controllers} controllers; expected at most one"


def metadata_problems(metadata: Json, *, namespaced: bool) -> Iterator[str]:
    """Judge all metadata that callers may set."""
    yield from name_problems(metadata.get("name"))
    yield from namespace_problems(metadata.get("namespace"), namespaced=namespaced)
    yield from label_problems(metadata.get("labels", {}))
    yield from annotation_problems(metadata.get("annotations", {}))
    yield from owner_problems(metadata.get("ownerReferences", []))


def _text_problems(place: str, found: object) -> Iterator[str]:
    if not isinstance(found, dict):
        yield f"{place} is {_shown(found)}; expected an object"
        return
    for key, value in found.items():
        if not isinstance(value, str):
            yield f"{place}[{key!r}] is {_shown(value)}; expected text"


def _texts(found: object) -> Iterator[tuple[str, str]]:
    if isinstance(found, dict):
        yield from ((key, value) for key, value in found.items() if isinstance(value, str))


def _is_subdomain(text: str) -> bool:
    return len(text) <= _LONGEST_SUBDOMAIN and _SUBDOMAIN.fullmatch(text) is not None


def _is_namespace(found: object) -> bool:
    return isinstance(found, str) and len(found) <= _LONGEST_LABEL and _NAMESPACE.fullmatch(found) is not None


def _is_qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and not _is_subdomain(prefix):
        return False
    return len(name) <= _LONGEST_LABEL and _NAME_PART.fullmatch(name) is not None


def _shown(value: Any) -> str:  # noqa: ANN401 - whatever a caller wrote
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004 - enough to recognise it
