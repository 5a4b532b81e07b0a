"""How log events look: for people on a terminal, one JSON object per line elsewhere; always on stderr, never on stdout.

`lapse.core.log` makes the events and this module, used by `lapse up` only, decides their form. Tracebacks are
printed without local variables: those hold keys, values and tokens.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.stdlib import ExtraAdder, ProcessorFormatter

_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has: all else on one are keys of the event."""


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
    # No event says so, and every record would ask the system.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # Its news is told by events of our own; its warnings are not.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, root.level))
    logging.getLogger("asyncio").setLevel(max(logging.WARNING, root.level))


def _formatter(*, as_json: bool, colors: bool) -> logging.Formatter:
    if as_json:
        return JSONFormatter()
    console = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
    return ProcessorFormatter(
        # Events arrive as records of the standard library with their keys as extras, like those of any other library.
        foreign_pre_chain=[
            structlog.stdlib.add_logger_name,
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            ExtraAdder(),
        ],
        processors=[ProcessorFormatter.remove_processors_meta, console],
    )


class JSONFormatter(logging.Formatter):
    """One JSON object per line, for records of any library.

    By hand, because a journal in the log is two lines for everything that lapses, and a chain of processors would take
    as much time for them as the deletion itself.
    """

    _encode = staticmethod(json.JSONEncoder(default=repr).encode)

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        told = datetime.fromtimestamp(record.created, UTC)
        event: dict[str, Any] = {
            "event": record.getMessage(),
            "logger": record.name,
            "level": record.levelname.lower(),
            "timestamp": f"{told.isoformat(timespec='microseconds')[:-6]}Z",
        }
        event |= {key: value for key, value in record.__dict__.items() if key not in _OWN}
        if record.exc_info and record.exc_info[0] is not None:
            # As one text: a structured form would show local variables.
            event["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            event["stack"] = record.stack_info
        return self._encode(event)
