"""Where the local executor keeps things, and how its objects name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.kube.resources import ObjectKey

DRIVER: Final = "local.lapse.dev"
CLASS: Final = "local"
"""The name of the StorageClass and of the VolumeSnapshotClass."""
DIRECTORY: Final = "local.lapse.dev/directory"
"""On a claim, or on the template of a restore: the directory that is the volume."""
RESTORE: Final = "local.lapse.dev/restore"
"""On a claim that this executor made: the uid of the restore request that it is for."""
_DIGEST: Final = "@sha256:"


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of one executor."""

    root: Path

    @property
    def snapshots(self) -> Path:
        """Archives, one per snapshot content."""
        return self.root / "snapshots"

    def archive(self, content_name: str) -> Path:
        """Return the archive of a snapshot content."""
        return self.snapshots / f"{content_name}.tar.gz"

    def volume(self, claim: ObjectKey) -> Path:
        """Return where a restore goes that names no directory."""
        return self.root / "volumes" / (claim.namespace or "") / claim.name

    def content_of(self, archive: Path) -> str:
        """Return the name of the snapshot content that an archive belongs to."""
        return archive.name.removesuffix(".tar.gz")


def snapshot_handle(archive: Path, sha256: str) -> str:
    """Name an archive together with what it must contain."""
    return f"{archive.name}{_DIGEST}{sha256}"


def digest_of(handle: str) -> str | None:
    """Return the checksum in a snapshot handle; None when it is not one of ours."""
    _, found, digest = handle.partition(_DIGEST)
    return digest if found else None
