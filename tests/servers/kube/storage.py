"""What the CSI driver of a control plane keeps on this machine's disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Storage:
    """Where the hostpath driver keeps what it made: how a test looks behind the API, and stands in for a pod."""

    folder: Path

    def volume(self, handle: str) -> Path:
        """The folder with a volume's files; `handle` is the `volumeHandle` of its PersistentVolume."""
        return self.folder / handle

    def volumes(self) -> set[str]:
        """The handles of all volumes that are really there."""
        return {path.name for path in self.folder.iterdir() if path.is_dir()}

    def snapshots(self) -> set[str]:
        """The handles of all snapshots that are really there: the `snapshotHandle` of a VolumeSnapshotContent."""
        return {path.stem for path in self.folder.glob("*.snap")}
