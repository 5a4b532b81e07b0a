"""Annotations that carry meaning between the parts of the system."""

from __future__ import annotations

from typing import Final

TTL: Final = "storage.deckhouse.io/ttl"
"""On a finished request: how long it stays. Decides in mode annotation, only informs in mode scanner."""
EXPIRES_AT: Final = "storage.deckhouse.io/expires-at"
"""On a finished request, for people who read lists: when it will go. Nothing is decided by it."""
OVERLOOKED: Final = "storage.deckhouse.io/deletion-overlooked"
"""On a VolumeSnapshotContent that should be gone: when its snapshotter was last made to look at it."""
SNAPSHOT_CLASS: Final = "storage.deckhouse.io/volumesnapshotclass"
"""On a StorageClass: which VolumeSnapshotClass captures its volumes."""
