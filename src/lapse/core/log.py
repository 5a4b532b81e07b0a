"""Loggers: structured events on top of the standard library's logging.

An event is a constant name with keys and values, never a sentence with numbers in it. Without any configuration the
events go where the host program's logging sends them, as a library should; `lapse up` configures how they look. Never
log a key's name, a value or a token.
"""

from __future__ import annotations

import logging

import structlog


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
