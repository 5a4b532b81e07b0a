"""The Lua scripts of keys, by name."""

from __future__ import annotations

from typing import Final

from lapse.db.redis.scripts import load_scripts

# What is repeated safely. That `scan` prunes and `check` tries to write nothing makes no difference to that.
SCRIPTS: Final = load_scripts("lapse.keys.backends.redis", "scripts.lua", repeatable={"check", "find", "scan"})
