"""What no schema can say about requests and what they make: the rules of each kind.

The spec of every kind is immutable: a request is one operation, and who wants another one makes another request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.kube.crd.rules import IMMUTABLE_SPEC, Rule, is_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

_IMMUTABLE_OPTIONAL_SPEC: Final = Rule(
    (),
    "has(self.spec) == has(oldSelf.spec) && (!has(self.spec) || self.spec == oldSelf.spec)",
    lambda new, old: new.get("spec") == old.get("spec"),
    "spec is immutable",
    about_changes=True,
)


def _needs(name: str, mode_without: str) -> tuple[Rule, Rule]:
    """Demand a field of a keeper in all modes but one, and forbid it in that one."""
    return (
        Rule(
            ("spec",),
            f"self.mode == '{mode_without}' || has(self.{name})",
            lambda spec, _old: spec["mode"] == mode_without or spec.get(name) is not None,
            f"{name} is required in all modes but {mode_without}",
        ),
        Rule(
            ("spec",),
            f"self.mode != '{mode_without}' || !has(self.{name})",
            lambda spec, _old: spec["mode"] != mode_without or spec.get(name) is None,
            f"{name} is not allowed in mode {mode_without}",
        ),
    )


RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    "VolumeCaptureRequest": (IMMUTABLE_SPEC,),
    "VolumeRestoreRequest": (IMMUTABLE_SPEC,),
    "ManifestCaptureRequest": (IMMUTABLE_SPEC,),
    "ManifestCheckpoint": (_IMMUTABLE_OPTIONAL_SPEC,),
    "ManifestCheckpointContentChunk": (IMMUTABLE_SPEC,),
    "ObjectKeeper": (
        IMMUTABLE_SPEC,
        *_needs("ttl", "FollowObject"),
        *_needs("followObjectRef", "TTL"),
        *is_duration("spec", "ttl"),
    ),
}
"""By the name of the kind."""
