"""What is written down of the demo, what it works on, and the marks on its things.

Guarantees. Everything that the demo makes is marked: objects by a label, keys by their application and their values,
files by their first line; workspaces, which have no place for a mark, are known by their ids. A note holds the uid of a
thing before it is made, and of a file a word in it, so that a process which is killed leaves nothing unknown.

Not guaranteed: that a uid is remembered for ever: of more than `KNOWN` the oldest is forgotten. Of two processes that
write the note of what was made, the last one counts; the one that leads writes what it knows again with its next thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from lapse.domains import REGISTRY

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from lapse.engine.safety.freeze import Notes
    from lapse.engine.verbs.place import Place
    from lapse.keys.aio import AsyncKeys
    from lapse.objects.embedded import EmbeddedStore
    from lapse.settings import Settings
    from lapse.workspaces.store.port import WorkspaceStore

LABEL: Final = "lapse.dev/demo"
LABELS: Final = {LABEL: "true"}
"""On every object of the demo."""
APP: Final = 3366
"""The application of its keys."""
WORKSPACE: Final = "demo-notebook"
MARK: Final = "Made by lapse demo; lapse demo stop removes it."
"""The value of its keys, and the first line of its files."""
PREFIX: Final = "demo-"
"""Of the names of its things."""
POLICY: Final = "demo-history"
"""The name of its retention policy."""
FOLDER: Final = "demo"
"""In the state folder: the directory that is captured."""
FILES: Final = {"greeting.txt": "hello", "plan.txt": "capture this folder, see it lapse, bring it back"}
"""What is in it."""
SCRATCH: Final = "scratch"
"""The example domain of ``examples/domain``, by its name; and its folder in the state folder, unless it has another."""
KNOWN: Final = 2_000
"""How many uids are remembered: of more things than are made before the demo stops by itself."""
_STATE: Final = "demo"
_MADE: Final = "demo.made"


class DemoState(msgspec.Struct, frozen=True):
    """Since when the demo runs and until when; or that it was stopped, and whether by a person."""

    started_ns: int
    ends_ns: int
    stopped: bool = False
    by_person: bool = False


class DemoMade(msgspec.Struct):
    """What must be remembered of what was made; written by the process that leads alone."""

    serial: int = 0
    claim: str = ""
    """The uid of the claim, before it is made."""
    captures: list[str] = []
    """The uids of captures of which something may be there, before they are made: what they make has its name from
    these."""
    uids: list[str] = []
    """The uids of everything, the latest last; those of objects and of the workspace before they are made."""
    files: dict[str, str] = {}
    """By address: the word in a file until its uid is noted, as it is not known before, and then the uid."""
    run: str = ""
    """The uid of its experiments, so that its records count towards no limit of others."""
    problems: dict[str, str] = {}
    """By address: what stayed when everything was last to be removed, and why."""

    def know(self, uids: Iterable[str]) -> None:
        """Remember uids, and forget the oldest of too many."""
        known = set(self.uids)
        self.uids = [*self.uids, *(one for one in uids if one not in known)][-KNOWN:]


@dataclass
class DemoContext:
    """What the demo of one place works on."""

    settings: Settings
    place: Place
    objects: EmbeddedStore
    keys: AsyncKeys
    workspaces: WorkspaceStore | None
    """None where they are not served."""
    notes: Notes
    """Those of the folder."""

    @property
    def now(self) -> int:
        """The time as the place knows it, in nanoseconds."""
        return self.place.clock.wall_ns()

    @property
    def scratch(self) -> Path | None:
        """The folder for files; None where there is no such domain, or it is about a folder of somebody's."""
        is_there = SCRATCH in REGISTRY.installed_names()
        section = self.settings.domains.get(SCRATCH, {})
        is_own = "folder" not in section and section.get("enabled", True)
        return self.settings.state_dir / SCRATCH if is_there and is_own else None

    async def state(self) -> DemoState | None:
        """Return what is noted of it; None where there never was one."""
        text = await self.notes.read_note(_STATE)
        return None if text is None else msgspec.json.decode(text, type=DemoState)

    async def made(self) -> DemoMade:
        """Return what is noted of its things."""
        text = await self.notes.read_note(_MADE)
        return DemoMade() if text is None else msgspec.json.decode(text, type=DemoMade)

    async def write_state(self, state: DemoState) -> None:
        """Note how it stands."""
        await self.notes.write_note(_STATE, msgspec.json.encode(state).decode())

    async def write_made(self, made: DemoMade) -> None:
        """Note what was made, or is about to be."""
        await self.notes.write_note(_MADE, msgspec.json.encode(made).decode())


def written(text: str) -> str:
    """Return what is in a file with this text: the mark is its first line."""
    return f"{MARK}\n{text}\n"
