"""A Lapse that hosts workspaces, as a process of its own: python host.py FOLDER [stay]. It is there to be killed."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from lapse.core.clock import SystemClock
from lapse.workspaces.runtime.host import WorkspaceHost
from lapse.workspaces.runtime.process import ProcessRuntime
from lapse.workspaces.store.sqlite import open_sqlite_store


async def main(folder: Path, *, stop_on_exit: bool) -> None:
    clock, stopping = SystemClock(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    store = open_sqlite_store(folder / "workspaces.db")
    runtime = ProcessRuntime(folder / "run", node="here", clock=clock, stop_on_exit=stop_on_exit, grace_seconds=2)
    try:
        await WorkspaceHost(store, runtime, clock=clock).run(stopping)
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), stop_on_exit="stay" not in sys.argv[2:]))
