"""Loggers: structured events on top of the standard library's logging.

An event is a constant name with keys and values, never a sentence with numbers in it. Without any configuration the
events go where the host program's logging sends them, as a library should; `lapse up` configures how they look. Never
log a key's name, a value or a token.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import structlog
from structlog.contextvars import bound_contextvars

from lapse.core.identity import owner_token

if TYPE_CHECKING:
    from collections.abc import Iterator


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of one part, such as ``lapse.keys.sweep``."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return logger


_WORK: Final[ContextVar[str]] = ContextVar("lapse_work", default="")


@contextmanager
def piece_of_work(kind: str, **about: str) -> Iterator[None]:
    """Give all log lines of one tick or reconcile the same id, under the name ``kind``, and say what it is about."""
    identity = owner_token()
    before = _WORK.set(identity)
    try:
        with bound_contextvars(**{kind: identity}, **about):
            yield
    finally:
        _WORK.reset(before)


def current_work() -> str:
    """Return the id of the piece of work at hand; empty outside of one."""
    return _WORK.get()
