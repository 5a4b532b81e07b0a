"""The form of log events: for people on a terminal, one JSON object per line elsewhere; on stderr, never on stdout.

The lines for people are those of `lapse.engine.running.console`.

`lapse.core.log` makes the events and this module, used by processes that stay, decides their form. Tracebacks are
printed without local variables: those hold keys, values and tokens.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has: all else on one are keys of the event."""


def configure_logs(*, form: Literal["auto", "console", "json"], level: str, stream: TextIO | None = None) -> None:
    """Send the events of the whole process to ``stream``. Replaces what an earlier call has set."""
    stream = stream or sys.stderr
    as_json = form == "json" or (form == "auto" and not stream.isatty())
    handler: logging.Handler
    if as_json:
        handler = JSONHandler(stream)
    else:
        from lapse.engine.running.console import ConsoleHandler  # imports the journal, which imports this module

        handler = ConsoleHandler(stream)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # No event says so, and every record would ask the system.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # Their news is told by events of our own; their warnings are not.
    for name in ("uvicorn", "asyncio", "alembic"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


_encode: Final = json.JSONEncoder(default=repr).encode
"""For events of anybody: what is no JSON is shown as Python shows it, and not by its parts, which may be secret."""


def _encode_plain(event: Mapping[str, Any]) -> str:
    """Write the same line for what is JSON already, three times as fast."""
    try:
        line = msgspec.json.format(msgspec.json.encode(event), indent=0)
    except UnicodeEncodeError:  # half a character: no reason to lose the line
        return _encode(event)
    return line.decode() if line.isascii() else _encode(event)


class JSONFormatter(logging.Formatter):
    """One JSON object per line, for records of any library."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        level = record.levelname.lower()
        event = _event(record.getMessage(), logger=record.name, level=level, created=record.created)
        event |= {key: value for key, value in record.__dict__.items() if key not in _OWN}
        if record.exc_info and record.exc_info[0] is not None:
            # As one text: a structured form would show local variables.
            event["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            event["stack"] = record.stack_info
        return _encode(event)


class JSONHandler(logging.StreamHandler[TextIO]):
    """Writes JSON lines; also events that are no records, because nobody but this handler would look at them.

    A journal in the log is two lines for everything that lapses, and to make and hand on records would take as much
    time for them as the deletion itself.
    """

    def __init__(self, stream: TextIO) -> None:
        """Write to ``stream``."""
        super().__init__(stream)
        self.setFormatter(JSONFormatter())

    def write(self, name: str, fields: Mapping[str, Any], *, logger: str, created: float) -> None:
        """Write one event of level info, with ``fields`` as its keys: texts, numbers, and what is made of them."""
        event = _event(name, logger=logger, level="info", created=created)
        event.update(fields)
        line = f"{_encode_plain(event)}{self.terminator}"
        self.acquire()
        try:
            self.stream.write(line)
            self.stream.flush()
        finally:
            self.release()


def _event(name: str, *, logger: str, level: str, created: float) -> dict[str, Any]:
    seconds, fraction = divmod(round(created * 1e6), 1_000_000)
    return {"event": name, "logger": logger, "level": level, "timestamp": f"{_second(seconds)}.{fraction:06}Z"}


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
