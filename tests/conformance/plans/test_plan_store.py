"""Proposed plans in the state folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import VirtualClock
from lapse.db.sqlite.file import Synchronous
from lapse.engine.plans.sqlite import SQLitePlans
from lapse.objects.embedded import open_embedded
from tests.conformance.plans.plan_store_cases import CASES

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", CASES)
async def test_plans_are_kept_in_a_state_folder(name: str, tmp_path: Path) -> None:
    store = open_embedded(tmp_path / "one.db", kinds=(), clock=VirtualClock(), synchronous=Synchronous.NORMAL)
    try:
        await CASES[name](SQLitePlans(store.database))
    finally:
        await store.close()
