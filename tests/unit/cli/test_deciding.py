"""Commands decide by the settings of the process that runs there, and say where their own differ."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from lapse.app.process import DECIDING, DecidingUnreadableError, note_deciding
from lapse.app.record import ProcessRecord, open_store
from lapse.cli.context import Context
from lapse.core.clock import VirtualClock
from lapse.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

CLOCK = VirtualClock()


async def note(folder: Path, text: str | None = None, **settings: str) -> None:
    """Leave the note of a process with these settings, or another text."""
    store = open_store(folder, clock=CLOCK)
    notes = ProcessRecord.in_folder(store).safety
    if text is None:
        await note_deciding(notes, load_settings(settings).settings)
    else:
        await notes.write_note(DECIDING, text)
    await store.close()


@pytest.fixture(autouse=True)
def no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


async def test_a_setting_of_the_command_that_differs_is_told_and_does_not_decide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await note(tmp_path, request_ttl="3h", keeper_ttl="5h")
    loaded = load_settings({"state_dir": str(tmp_path), "request_ttl": "10s"})
    async with AsyncExitStack() as stack:
        context = Context(loaded, stack, machine=CLOCK)
        _ = context.embedded

        assert (str(context.settings.request_ttl), str(context.settings.keeper_ttl)) == ("3h", "5h")
    told = " ".join(capsys.readouterr().err.split())
    differs = f"request_ttl 10s does not decide in {tmp_path}: the process that runs there has 3h"
    assert told == f"warning: flag --request-ttl: {differs}"


async def test_a_note_that_cannot_be_read_is_one_error_that_says_what_to_do(tmp_path: Path) -> None:
    await note(tmp_path, "{")
    async with AsyncExitStack() as stack:
        context = Context(load_settings({"state_dir": str(tmp_path)}), stack, machine=CLOCK)
        with pytest.raises(DecidingUnreadableError, match="restart the process that runs there"):
            _ = context.embedded
