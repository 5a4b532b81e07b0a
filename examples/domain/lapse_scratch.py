"""A domain of one's own: the files of a scratch folder lapse by age.

Only files directly in the folder; links and folders are left alone, and so are files whose names are not valid UTF-8:
they have no address, so nobody could hold one. A file is due when it was last written longer ago
than ``max_age``. Everything else is the engine's: budget, freeze, clock guard, holds, dry run, journal and metrics.

Guaranteed: a file that was written to or replaced after it was looked at stays. Not guaranteed: what a program writes
between the comparison and the removal, which are two calls microseconds apart, or through a descriptor that it keeps
open.
"""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from lapse.core.address import Address, AddressKind
from lapse.core.clock import UnixNs
from lapse.core.decision import DueReason, decide_by_ttl
from lapse.core.duration import Duration
from lapse.core.errors import LapseError
from lapse.engine.domain import DELETE, Candidate, Result, SimpleDomain, policy_hash
from lapse.engine.journal.port import Outcome
from lapse.engine.registry import DomainContext, DomainParts, Registration

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from lapse.core.decision import Decision
    from lapse.engine.domain import Action, Also

NAME = "scratch"


class ScratchFolderError(LapseError):
    """The scratch folder {folder} cannot be read: {problem}. Nothing of it is ended until it can."""


class ScratchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``[domains.scratch]`` of the settings."""

    folder: Path | None = None
    """None: ``scratch`` in the state folder, which is made, so that without settings nothing of anybody's lapses."""
    max_age: Duration = Duration.parse("24h")


class File(NamedTuple):
    """What is decided on, and what the removal compares."""

    name: str
    uid: str
    version: str
    written: UnixNs


class ScratchFiles(SimpleDomain[File]):
    """The domain and its target in one object: what there is, when it lapses, and how it is ended."""

    name = NAME
    reasons = (DueReason.TTL_EXPIRED,)
    batch = 100
    """How many files are removed at once, at most."""

    def __init__(self, folder: Path, max_age: Duration) -> None:
        self._folder, self._max_age, self._policy = folder, max_age, policy_hash(max_age)
        self._after = ""
        """Where a sweep that was cut short goes on."""

    # --- what there is ------------------------------------------------------------------------------------------------

    async def due(self, now: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[File]], None]:
        """Yield the files in pages; `decide` says which of them are due."""
        names = await asyncio.to_thread(self._names)
        names = [name for name in names if name > self._after]
        for start in range(0, len(names), size):
            page = names[start : start + size]
            found = await asyncio.to_thread(lambda names: [self._read(name) for name in names], page)
            self._after = page[-1]
            yield [self._candidate(file) for file in found if file is not None]
        self._after = ""

    async def find(self, address: Address) -> Candidate[File] | None:
        """Return one file, for commands such as ``lapse hold scratch/NAME``."""
        if "/" in address.name or "\0" in address.name or address.name in {".", ".."}:
            return None
        try:
            file = await asyncio.to_thread(self._read, address.name)
        except OSError as error:
            raise ScratchFolderError(folder=self._folder, problem=error.strerror) from error
        return None if file is None else self._candidate(file)

    def _names(self) -> list[str]:
        """Return the names in the folder; without those that no address can have, as nobody could hold such a file."""
        try:
            return sorted(path.name for path in self._folder.iterdir() if _is_text(path.name))
        except OSError as error:
            raise ScratchFolderError(folder=self._folder, problem=error.strerror) from error

    def _read(self, name: str) -> File | None:
        """Return a file as it is; None for what is none, or is gone. A link is not followed."""
        try:
            found = (self._folder / name).lstat()
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        uid, version = f"{found.st_dev}-{found.st_ino}", f"{found.st_mtime_ns}-{found.st_size}-{found.st_ctime_ns}"
        return File(name, uid, version, UnixNs(found.st_mtime_ns))

    def _candidate(self, file: File) -> Candidate[File]:
        address = Address(NAME, None, file.name)
        return Candidate(address=address, uid=file.uid, version=file.version, state=file, handle=file.name)

    # --- when it lapses -----------------------------------------------------------------------------------------------

    def decide(self, candidate: Candidate[File], now: UnixNs) -> Decision:
        """Say whether a file is due. Pure: it looks at nothing but its arguments."""
        return decide_by_ttl(candidate.state.written, self._max_age, now, action=DELETE)

    def policy(self, candidate: Candidate[File]) -> str:
        """Return what tells in the journal which rule decided: another one where ``max_age`` was another."""
        return self._policy

    def details(self, candidate: Candidate[File]) -> dict[str, Any] | None:
        """Return what the journal is to remember of a file that is gone."""
        return {"folder": str(self._folder)}

    # --- how it is ended ----------------------------------------------------------------------------------------------

    async def apply(self, actions: Sequence[Action], *, also: Also | None) -> Sequence[Result]:
        """Remove the files that are still as they were decided on; what came of one does not touch the others."""
        return await asyncio.to_thread(lambda: [self._remove(one) for one in actions])

    def _remove(self, action: Action) -> Result:
        try:
            file = self._read(action.handle)
            if file is None:
                return Result(Outcome.GONE)
            if (file.uid, file.version) != (action.uid, action.version):
                return Result(Outcome.CHANGED)
            (self._folder / action.handle).unlink()
        except FileNotFoundError:
            return Result(Outcome.GONE)
        except OSError as error:
            return Result(Outcome.FAILED, ScratchFolderError(folder=self._folder, problem=error.strerror))
        return Result(Outcome.ENDED)


def _is_text(name: str) -> bool:
    """Whether a name is valid UTF-8; Python gives other bytes as halves of characters."""
    return not any("\ud800" <= one <= "\udfff" for one in name)


def build(context: DomainContext) -> DomainParts:
    """Make the domain from its settings. One object is both parts."""
    settings = context.settings
    files = ScratchFiles(settings.folder or _own_folder(context.state_dir), settings.max_age)
    return DomainParts(files, files)


def _own_folder(state_dir: Path) -> Path:
    folder = state_dir / NAME
    for one in (state_dir, folder):
        one.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


SCRATCH = Registration(
    name=NAME,
    kinds=(AddressKind(NAME),),
    reasons=lambda: ScratchFiles.reasons,
    settings=ScratchSettings,
    build=build,
)
