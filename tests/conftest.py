"""Fixtures and options of every test."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from lapse.domains import REGISTRY
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = ["tests.selection", "tests.servers.pytest_plugin"]

# No deadlines: how long an example takes, or its making, says more about the machine than about the code. In CI the
# same examples every time, so that a red run is about the change; elsewhere new ones, so that they find something.
settings.register_profile(
    "lapse",
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize="CI" in os.environ,
)
settings.load_profile("lapse")

# A run starts a thousand processes of Lapse. Where they may not keep their bytecode, as in many container images, each
# of them compiles the same hundreds of modules once more: three quarters of what most of them do.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


# `make run` installs the example domain beside Lapse. Tests see the domains of Lapse alone, whether it is there or not;
# those that want another one say so. Other processes do see it: without settings it is about a folder of its own.
REGISTRY._installed = tuple


@pytest.fixture(scope="session", autouse=True)
def _loop_of_the_main_thread() -> Iterator[None]:
    """Own the main thread's loop: pytest-asyncio asks for it, and on Python 3.11 that makes one which nobody closes."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """Take back where a command of this test sent the log: its stream is closed when the next test logs something."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session", autouse=True)
def _credentials_of_nobody() -> Iterator[None]:
    """Made-up AWS credentials, which a local server takes: no test may find the real ones of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "made-up")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # nor may it ask the network for a role
        yield
