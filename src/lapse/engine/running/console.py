"""Log lines for people: local time, a word for what happened, the thing, and why; one line for each event.

Rows of the journal that are acts, of the engine or of people, are lines of their own (`ACT_OUTCOMES`); what only
changed its verdict is none. An event that is not known here is shown as ``event key=value``. Warnings and errors begin
with a word that says so, and have a colour on a terminal beside it, unless ``NO_COLOR`` is set.

Guarantees: an address is never cut, nor is what a warning says; the reason of an act ends where the terminal does.
Characters that a terminal obeys are escaped. Of one domain at most `MOST_LINES` acts are shown in a second, and then
how many more there were: within a second after them, or when the process ends. JSON logs have all of them
(`lapse.engine.running.logs`).

Not guaranteed: columns for characters that are two cells wide.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from threading import Timer
from typing import TYPE_CHECKING, Any, Final, TextIO

from lapse.core.duration import short
from lapse.core.text import printable
from lapse.core.timestamps import to_timestamp
from lapse.engine.explanation import words
from lapse.engine.journal.port import AUDIT, AuditReason, DeletionReason, Outcome
from lapse.engine.safety.freeze import ALL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_LINES: Final = 20
"""Acts of one domain in one second."""
ROW: Final = "journal"
"""The event of a row of the journal; its keys are those of an `Entry`."""
ACT_OUTCOMES: Final = frozenset({Outcome.ENDED, Outcome.DONE, Outcome.REFUSED, Outcome.FROZEN, Outcome.RESUMED})
_BRAKES: Final = {Outcome.FROZEN: "domain_frozen", Outcome.RESUMED: "domain_resumed"}
_LAPSED: Final = "lapsed"
_FROZEN: Final = "FROZEN"
_WORD_WIDTH: Final = 9
_LEAST_REASON: Final = 12
"""Fewer characters of a reason than this say nothing: then it wraps instead."""
_LAYOUT: Final = "\n\t"
_SECOND: Final = 1.0
_WORK: Final = frozenset({"tick", "reconcile"})
"""Ids that join lines of one piece of work: for programs."""
_WORKSPACE: Final = "workspace"
_NAME: Final = "workspace_name"
_STEPS: Final[Mapping[str, tuple[str, str]]] = {
    "PROVISIONING": ("making", "made"),
    "RESTORING": ("restoring", "restored"),
    "STARTING": ("starting", "started"),
    "STOPPING": ("stopping", "stopped"),
    "ARCHIVING": ("archiving", "archived"),
    "DELETING": ("deleting", "deleted"),
}
"""Words for what is done to a workspace: while it is, and when it is over."""
_TOLD: Final = ("reason", "problem", "effect", "instead")
"""Keys whose values are sentences."""
_PEOPLE: Final = ("user ", "token ")
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_AUDIT_WORDS: Final[Mapping[str, str]] = {
    AuditReason.TOKEN_CREATED: "created",
    AuditReason.TOKEN_REVOKED: "revoked",
    AuditReason.LOGIN_REFUSED: "refused",
    AuditReason.WORKSPACE_CREATED: "created",
    AuditReason.WORKSPACE_OPENED: "opened",
    AuditReason.HOLD_PLACED: "held",
    AuditReason.HOLD_RELEASED: "released",
    AuditReason.DEADLINE_EXTENDED: "extended",
    AuditReason.PLAN_APPROVED: "approved",
    AuditReason.PLAN_PROPOSED: "proposed",
    AuditReason.BROUGHT_BACK: "undone",
}
_RESET: Final = "\x1b[0m"
_BOLD, _YELLOW, _RED = "\x1b[1m", "\x1b[33;1m", "\x1b[31;1m"


@dataclass(frozen=True, slots=True)
class LogLine:
    """What is said of one event."""

    word: str
    thing: str = ""
    why: str = ""
    domain: str = ""
    """Of an act: whose lines are counted. Empty: it is always shown, and whole."""
    acts: int = 1
    """How many acts it tells of."""
    time: float | None = None
    """When that was, where it is another time than that of the event."""


# --- what is said ----------------------------------------------------------------------------------------------------


def line_of(event: str, keys: Mapping[str, Any], *, level: int = logging.INFO) -> LogLine | None:
    """Return the line of an event; None for one that is not for people. Texts are as they came."""
    keys = _named(keys)
    made = _LINES.get(event)
    if made is not None:
        return made(keys)
    if level >= logging.WARNING:
        word = "ERROR" if level >= logging.ERROR else "WARNING"
        return LogLine(word, event, _rest(keys))
    return LogLine(event, "", _rest(keys))


def _row(keys: Mapping[str, Any]) -> LogLine | None:
    """Say what a row of the journal tells, if that is an act."""
    audit, reason, details = keys.get("domain") == AUDIT, str(keys.get("reason", "")), keys.get("details") or {}
    is_refused = keys.get("outcome") == Outcome.REFUSED
    if keys.get("outcome") not in ACT_OUTCOMES or (is_refused and not audit):
        return None
    domain = str(details.get("domain") or keys.get("domain", ""))
    if brake := _BRAKES.get(keys["outcome"]):
        return None if "policy" in details else _braked(brake, domain, keys, details)
    time = keys["time_ns"] / 1e9
    thing = str(keys.get("address") or domain)
    if audit:
        word = _AUDIT_WORDS.get(reason)
        why = _with_actor(_of_audit(details), keys)
        return None if word is None else LogLine(word, thing, why, domain=f"{domain} {word}", time=time)
    count = details.get("count")
    if isinstance(count, int):  # keys: never their names
        return LogLine(_LAPSED, thing, f"{count} of them: {words(reason)}", domain=domain, acts=count, time=time)
    if reason == DeletionReason.BY_PERSON:
        return LogLine("deleted", thing, _with_actor("", keys), domain=f"{domain} deleted", time=time)
    return LogLine(_LAPSED, thing, _with_actor(_over(keys, reason), keys), domain=domain, time=time)


def _braked(event: str, domain: str, keys: Mapping[str, Any], details: Mapping[str, Any]) -> LogLine:
    """Say what the event of a brake says that was read by its loop, which may be a while later."""
    actor = str(keys.get("actor", ""))
    by = actor if actor.startswith(_PEOPLE) else ""
    told = {"domain": domain, "reason": details.get("reason") or words(str(keys.get("reason", ""))), "by": by}
    return _frozen({**told, "run": f"lapse resume {domain}"}) if event == "domain_frozen" else _resumed(told)


def _resumed(keys: Mapping[str, Any]) -> LogLine:
    by = f" (by {keys['by']})" if keys.get("by") else ""
    return LogLine("resumed", str(keys.get("domain", "")), f"it is ended again when it is due{by}")


def _passed(keys: Mapping[str, Any]) -> LogLine | None:
    """Say what a pass has deleted; that there was nothing to do is said to programs only."""
    deleted = keys.get("deleted")
    count = sum(deleted.values()) if isinstance(deleted, dict) else 0
    done = f"{count} would be deleted: it was dry" if keys.get("dry_run") else f"{count} deleted"
    return LogLine("passed", f"policy {keys.get('policy')}", done) if count else None


def _over(keys: Mapping[str, Any], reason: str) -> str:
    anchor = keys.get("anchor_ns")
    after = f" after {short(keys['time_ns'] - anchor)}" if isinstance(anchor, int) and anchor else ""
    return words(reason) + after


def _of_audit(details: Mapping[str, Any]) -> str:
    until, count = details.get("until_ns"), details.get("count")
    parts = [
        "legal hold" if details.get("legal") else "",
        str(details.get("reason") or ""),
        f"{count} times" if isinstance(count, int) else "",
        f"until {to_timestamp(until)}" if isinstance(until, int) else "",
    ]
    return ", ".join(filter(None, parts))


def _with_actor(why: str, keys: Mapping[str, Any]) -> str:
    """Say who, where a person or a plan did it; that the engine did the rest goes without saying."""
    actor, plan = str(keys.get("actor", "")), (keys.get("details") or {}).get("plan")
    by = f"by {actor}" if actor.startswith(_PEOPLE) else ""
    by = " ".join(filter(None, (by, f"by plan {plan}" if plan else "")))
    if not by:
        return why
    return f"{why} ({by})" if why else by


def _lapsed(keys: Mapping[str, Any]) -> LogLine:
    domain = str(keys.get("domain", ""))
    if isinstance(more := keys.get("more"), int):
        return LogLine("", f"and {more} more of {domain} lapsed")
    return LogLine(_LAPSED, str(keys.get("address", domain)), words(str(keys.get("reason", ""))), domain=domain)


def _frozen(keys: Mapping[str, Any]) -> LogLine:
    by = f" (by {keys['by']})" if keys.get("by") else ""
    run = f"; to go on: {keys['run']}" if keys.get("run") else ""
    return LogLine(_FROZEN, str(keys.get("domain", "")), f"{keys.get('reason') or 'nothing of it is ended'}{by}{run}")


def _listening(keys: Mapping[str, Any]) -> LogLine:
    places = {name: str(value) for name, value in keys.items() if name not in _WORK}
    first = next((name for name in ("http", "proxy", "webhook") if name in places), next(iter(places), ""))
    rest = ", ".join(f"{name} {place}" for name, place in places.items() if name != first)
    return LogLine("listening", places.get(first, ""), rest)


def _named(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return keys in which a workspace has its name, where that is known, instead of its id."""
    if not keys.get(_NAME):
        return keys
    return {name: keys[_NAME] if name == _WORKSPACE else value for name, value in keys.items() if name != _NAME}


def _step(keys: Mapping[str, Any], *, is_over: bool) -> LogLine:
    operation = str(keys.get("operation", ""))
    begun, done = _STEPS.get(operation, (operation, operation))
    return LogLine(done if is_over else begun, _workspace(keys))


def _workspace(keys: Mapping[str, Any]) -> str:
    return f"workspace/{keys.get(_WORKSPACE, '')}"


def _started(keys: Mapping[str, Any]) -> LogLine:
    why = f"its program, with the pid {keys.get('pid')}, listens on port {keys.get('port')}"
    return LogLine("runs", _workspace(keys), why)


def _demo(keys: Mapping[str, Any]) -> LogLine:
    state = "things that lapse soon come and go" if keys.get("is_on") else "it is stopped"
    quicker = f"; set for it: {keys['settings']}" if keys.get("settings") else ""
    return LogLine("demo", "", f"{state}; {keys.get('run')}{quicker}")


def _rest(keys: Mapping[str, Any]) -> str:
    """Say sentences first, then what else there is."""
    told = [str(keys[name]) for name in _TOLD if keys.get(name)]
    others = [f"{name}={value}" for name, value in keys.items() if name not in {*_TOLD, *_WORK}]
    return "  ".join(filter(None, ("; ".join(told), " ".join(others))))


_LINES: Final[Mapping[str, Callable[[Mapping[str, Any]], LogLine | None]]] = {
    ROW: _row,
    _LAPSED: _lapsed,
    "domain_frozen": _frozen,
    "domain_resumed": _resumed,
    "policy_passed": _passed,
    "listening": _listening,
    "link_not_logged": lambda keys: LogLine("open", "", f"for a link that logs a browser in: {keys.get('run')}"),
    "demo": _demo,
    "operation_begun": partial(_step, is_over=False),
    "operation_done": partial(_step, is_over=True),
    "operation_given_up": lambda keys: LogLine("kept", _workspace(keys), "a user came before it was stopped"),
    "program_started": _started,
    "probe_answered": lambda keys: LogLine("answers", _workspace(keys), "its program answers its probe again"),
    "leftover_ended": lambda keys: LogLine(
        "ended", _workspace(keys), "a program that a Lapse before this one has left"
    ),
    "leading": lambda _: LogLine("leading", "", "this process carries out requests and lets things lapse"),
    "stepped_down": lambda _: LogLine("released", "leadership", "another process may lead now"),
    "stopping": lambda _: LogLine("stopping", "", "what is at hand is finished"),
    "stopped": lambda _: LogLine("stopped", "", "everything is closed"),
}


# --- how it looks ----------------------------------------------------------------------------------------------------


def written(line: LogLine, *, time: float, width: int = 0, level: int = logging.INFO, colors: bool = False) -> str:
    """Return a line as it is printed; ``width`` is that of the terminal, 0 for none."""
    at = datetime.fromtimestamp(time if line.time is None else line.time, UTC).astimezone().strftime("%H:%M:%S")
    word, thing, why = (printable(part) for part in (line.word, line.thing, line.why))
    is_told = level >= logging.WARNING or word == _FROZEN  # also where a row tells it, which has no level
    padded = f"{word:<{_WORD_WIDTH}}" if thing or why else word
    head = "  ".join(filter(None, (at, padded, thing)))
    left = width - len(head) - 2
    if width and line.domain and not is_told and len(why) > left >= _LEAST_REASON:
        why = f"{why[: left - 1]}…"
    if colors:
        color = (_RED if level >= logging.ERROR else _YELLOW) if is_told else _BOLD
        padded = f"{color}{word}{_RESET}{padded[len(word) :]}" if word else padded
        head = "  ".join(filter(None, (at, padded, thing)))
    return "  ".join(filter(None, (head, why))).rstrip()


def uses_colors(stream: TextIO) -> bool:
    """Whether a stream is a terminal that shows colours, and nobody has asked for none (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class ConsoleHandler(logging.StreamHandler[TextIO]):
    """Writes events as lines for people."""

    def __init__(self, stream: TextIO) -> None:
        """Write to ``stream``, in colours and as wide as it is if it is a terminal."""
        super().__init__(stream)
        self.follows_journal = False
        """Whether rows of a journal come here, so that what lapsed need not be told by the event as well."""
        self._colors = uses_colors(stream)
        self._brakes: dict[str, str] = {}
        """What was last told of each domain: that it is frozen, or that it goes on."""
        self._second = 0
        self._shown: Counter[str] = Counter()
        self._more: Counter[str] = Counter()
        self._timer: Timer | None = None
        atexit.register(self.tell_rest)

    def emit(self, record: logging.LogRecord) -> None:
        """Write an event, unless too many of its kind were written in this second."""
        try:
            event = record.getMessage()
            keys = {name: value for name, value in record.__dict__.items() if name not in _OWN}
            if self._is_told(event, keys):
                return
            line = line_of(event, keys, level=record.levelno)
            if line is None:
                return
            if int(record.created) != self._second:
                self._next_second(record.created)
            if line.domain and not self._has_room(line):
                return
            self._print(line, record)
        except Exception:  # noqa: BLE001 - a log that fails stops nothing, as logging has it
            self.handleError(record)

    def tell_rest(self) -> None:
        """Say how many acts were not shown."""
        self.acquire()
        try:
            more, self._more, self._timer = self._more, Counter(), None
            for name, count in more.items():
                domain, _, word = name.partition(" ")
                line = LogLine("", f"and {count} more of {domain} {word or _LAPSED}")
                self._write(written(line, time=self._second + _SECOND))
        finally:
            self.release()

    # --- inside, with the handler's lock -----------------------------------------------------------------------------

    def _is_told(self, event: str, keys: Mapping[str, Any]) -> bool:
        """Whether this was told before: of brakes rows and events tell the same, and either may come first."""
        if event == _LAPSED:
            return self.follows_journal
        brake = _BRAKES.get(keys.get("outcome", "")) if event == ROW else event
        if brake is None or brake not in _BRAKES.values() or "policy" in (keys.get("details") or {}):
            return False
        domain = str(keys.get("domain", ""))
        if self._brakes.get(domain, self._brakes.get(ALL)) == brake:
            return True
        if domain == ALL:
            self._brakes.clear()
        self._brakes[domain] = brake
        return False

    def _next_second(self, now: float) -> None:
        self.tell_rest()
        self._second = int(now)
        self._shown.clear()

    def _has_room(self, line: LogLine) -> bool:
        """Count an act; return whether it is shown. What is not is told soon, also where nothing else happens."""
        self._shown[line.domain] += 1
        if self._shown[line.domain] <= MOST_LINES:
            return True
        self._more[line.domain] += line.acts
        if self._timer is None:
            self._timer = Timer(_SECOND, self.tell_rest)
            self._timer.daemon = True
            self._timer.start()
        return False

    def _print(self, line: LogLine, record: logging.LogRecord) -> None:
        text = written(line, time=record.created, width=self._width(), level=record.levelno, colors=self._colors)
        if record.exc_info and record.exc_info[0] is not None:
            # Without local variables, which hold keys, values and tokens.
            trace = (self.formatter or logging.Formatter()).formatException(record.exc_info)
            text = f"{text}\n{printable(trace, keep=_LAYOUT)}"
        self._write(text)

    def _write(self, text: str) -> None:
        self.stream.write(text + self.terminator)
        self.flush()

    def _width(self) -> int:
        """Return the width of the terminal, as it is now; 0 where there is none."""
        try:
            return os.get_terminal_size(self.stream.fileno()).columns
        except (OSError, ValueError):  # no terminal, or no file at all
            return 0
