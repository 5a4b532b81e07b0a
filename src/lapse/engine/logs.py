"""How log events look: for people on a terminal, one JSON object per line elsewhere; always on stderr, never on stdout.

`lapse.core.log` makes the events and this module, used by `lapse up` only, decides their form. Tracebacks are
printed without local variables: those hold keys, values and tokens.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal, TextIO

import structlog
from structlog.stdlib import ExtraAdder, ProcessorFormatter


def configure_logs(*, form: Literal["auto", "console", "json"], level: str, stream: TextIO | None = None) -> None:
    """Send the events of the whole process to ``stream``. Replaces what an earlier call has set."""
    stream = stream or sys.stderr
    terminal = stream.isatty()
    as_json = form == "json" or (form == "auto" and not terminal)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_formatter(as_json=as_json, colors=terminal))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Its news is told by events of our own; its warnings are not.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, root.level))
    logging.getLogger("asyncio").setLevel(max(logging.WARNING, root.level))


def _formatter(*, as_json: bool, colors: bool) -> ProcessorFormatter:
    renderers: list[Any] = [ProcessorFormatter.remove_processors_meta]
    if as_json:
        # As one text: the structured form would show local variables.
        renderers += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        renderers += [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)]
    return ProcessorFormatter(
        # Events arrive as records of the standard library with their keys as extras, like those of any other library.
        foreign_pre_chain=[
            structlog.stdlib.add_logger_name,
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            ExtraAdder(),
        ],
        processors=renderers,
    )
