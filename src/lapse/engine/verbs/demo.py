"""The demo as people see it: what is asked of it, and its view, the same in a process, over HTTP and on a folder.

What it makes is in `lapse.app.demo`; here is only what front ends need to know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Protocol

from msgspec import Meta, Struct

from lapse.engine.view import Moment

if TYPE_CHECKING:
    from lapse.engine.verbs.place import Caller


class DemoView(Struct, frozen=True, kw_only=True):
    """The demo, and what there is of it now."""

    running: Annotated[
        bool, Meta(description="Whether it is on: new things are made wherever a lapse up runs on the folder")
    ]
    served: Annotated[
        bool, Meta(description="Whether a lapse up runs there now; false: it goes on when one does, if it is on")
    ] = True
    started_at: Moment | None
    ends_at: Annotated[Moment | None, Meta(description="When it stops by itself; null where it is not on")]
    things: Annotated[
        dict[str, list[str]], Meta(description="By domain: the addresses of what is there now, but for keys")
    ]
    keys: Annotated[int, Meta(description="How many keys of it there are; names of keys are not shown")]
    app: Annotated[int, Meta(description="The application that its keys are in")]
    notes: Annotated[list[str], Meta(description="What is missing or slower here than in a demo of lapse up --demo")]
    problems: Annotated[dict[str, str], Meta(description="By address: what stays after a stop, and why")] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it is there."""
        return not any(self.things.values()) and not self.keys


class DemoControl(Protocol):
    """What people can do with the demo."""

    async def status(self) -> DemoView:
        """Return what there is of it now."""
        ...

    async def start(self) -> DemoView:
        """Let it run for its time; one that runs goes on as it is."""
        ...

    async def stop(self, caller: Caller) -> DemoView:
        """End it, and everything that it has made and that is there; what is left is removed by the process."""
        ...
