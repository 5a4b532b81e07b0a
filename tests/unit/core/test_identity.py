"""Identities have the form that others expect of them."""

from __future__ import annotations

from uuid import UUID

from lapse.core.identity import uuid


def test_an_objects_identity_is_a_random_uuid_as_kubernetes_prints_it() -> None:
    drawn = [uuid() for _ in range(100)]
    assert len(set(drawn)) == 100
    assert {(UUID(text).version, str(UUID(text)) == text) for text in drawn} == {(4, True)}
