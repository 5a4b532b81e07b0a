"""Workspaces as values: states, operations, the rules for what people may ask for, and host names. Pure.

A workspace is immutable, as it was read. Its columns have one writer each: people and the proxy want a state
(`desired_*`, ``version``), the health monitor observes one (`observed_*`), the reconciler works (`operation`, `op_*`,
``archive_key``, `error_*`). ``version`` counts what was wanted: it is what a change of mind is compared with, and no
observation, no operation and no routine access moves it.

Times are whole Unix milliseconds, in every store, so that all compute alike. ``last_access_at`` is set at creation:
there is no null that could be taken for 'long ago'. Each workspace has a host name of its own, ``{name}.{suffix}``.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NewType

import msgspec

from lapse.core.errors import UsageError
from lapse.core.timestamps import EARLIEST, LATEST
from lapse.engine.safety.holds import REASON_FORM, is_reason
from lapse.workspaces.errors import InvalidPageSizeError, InvalidWorkspaceError
from lapse.workspaces.registration import WORKSPACES

DEFAULT_SUFFIX: Final = "w.localhost"
_HTTP_PORT: Final = 80
_SUFFIX: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


class SuffixError(UsageError, ValueError):
    """{suffix!r} cannot follow the names of workspaces; expected a host name such as w.example.com."""


def check_suffix(suffix: str) -> str:
    """Return a suffix in lower case; raises `SuffixError`."""
    lower = suffix.strip(".").lower()
    if not _SUFFIX.fullmatch(lower):
        raise SuffixError(suffix=suffix)
    return lower


def url_of(name: str, *, suffix: str, scheme: str, port: int) -> str:
    """Return the address of a workspace as people type it; with https it is that of whatever ends TLS, on port 443."""
    shown = "" if scheme == "https" or port == _HTTP_PORT else f":{port}"
    return f"{scheme}://{name}.{suffix}{shown}/"


WorkspaceId = NewType("WorkspaceId", str)
"""A uuid, as text in lower case. It is never used again, unlike a name."""
OpId = NewType("OpId", str)
"""Who works on a workspace: fresh for every claim, so that an answer that comes late is known for what it is."""
Ms = NewType("Ms", int)
"""A point in time: whole milliseconds since the Unix epoch."""


def is_set(moment: object) -> bool:
    """Whether what stands in a row is a point in time: anybody may have written it, and some mean 'not set'."""
    return type(moment) is int and _EARLIEST_MS <= moment <= _LATEST_MS


DOMAIN: Final = WORKSPACES.name
"""In the journal, in metrics, and where it is frozen."""
DEFAULT_STANDBY_TTL_SECONDS: Final = 300
DEFAULT_ARCHIVE_TTL_SECONDS: Final = 86_400
LONGEST_TTL_SECONDS: Final = 10 * 365 * 86_400
_EARLIEST_MS: Final = EARLIEST // 1_000_000
_LATEST_MS: Final = LATEST // 1_000_000
LARGEST_PAGE: Final = 1_001
"""One more than a page over HTTP has: by that one it is known whether there are more."""
JUPYTER: Final = "jupyter"
"""The probe that asks a Jupyter server for its kernels and its last activity."""
LARGEST_VERSION: Final = 2**63 - 1
_LATEST: Final = 253_402_300_800_000
"""The end of the year 9999, which is as far as calendars of programs go."""
_MOST_WORDS: Final = 256
_MOST_COMMAND_BYTES: Final = 64 * 1024
_MOST_OWNER: Final = 256
_MOST_PROBE: Final = 1_024
_MOST_MESSAGE: Final = 4_096
_HIGHEST_PORT: Final = 65_535
_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_PATH: Final = re.compile(r"/[!-~]*")
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHOWN: Final = 40


class DesiredState(StrEnum):
    """What is wanted."""

    PENDING = "PENDING"
    """Archived, or never started."""
    STANDBY = "STANDBY"
    """Stopped, its data in place."""
    RUNNING = "RUNNING"


class DesiredBy(StrEnum):
    """Who wants it."""

    USER = "user"
    ACCESS = "access"
    """Somebody opened it."""
    TTL = "ttl"


class ObservedStatus(StrEnum):
    """What is seen."""

    PENDING = "PENDING"
    STANDBY = "STANDBY"
    RUNNING = "RUNNING"
    ERROR = "ERROR"


class Operation(StrEnum):
    """What is being done."""

    NONE = "NONE"
    PROVISIONING = "PROVISIONING"
    RESTORING = "RESTORING"
    STARTING = "STARTING"
    STOPPING = "STOPPING"
    ARCHIVING = "ARCHIVING"
    DELETING = "DELETING"


class NewWorkspace(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody asks for; `check` holds it to the rules."""

    name: str
    """A DNS label, because it becomes part of a host name; unique among workspaces that are not deleted."""
    owner: str
    command: tuple[str, ...]
    port: int
    node_id: str | None = None
    desired_state: DesiredState = DesiredState.RUNNING
    standby_ttl_seconds: int = DEFAULT_STANDBY_TTL_SECONDS
    archive_ttl_seconds: int = DEFAULT_ARCHIVE_TTL_SECONDS
    probe: str | None = None
    """How its program is asked whether it works: `JUPYTER`, or a path on its port; None: it is not asked."""

    def check(self) -> None:
        """Raise `InvalidWorkspaceError` for the first rule that is broken."""
        check_name(self.name)
        _check_line("owner", self.owner, most=_MOST_OWNER)
        _check_command(self.command)
        _check_port(self.port)
        if self.probe is not None:
            check_probe(self.probe)
        if self.node_id is not None:
            _check_line("node_id", self.node_id, most=_MOST_OWNER)
        check_ttl("standby_ttl_seconds", self.standby_ttl_seconds)
        check_ttl("archive_ttl_seconds", self.archive_ttl_seconds)


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What is to become different about a workspace; what is None stays. Its data stays in any case."""

    owner: str | None = None
    command: tuple[str, ...] | None = None
    port: int | None = None
    standby_ttl_seconds: int | None = None
    archive_ttl_seconds: int | None = None
    probe: str | None = None
    """An empty text: no probe any more."""

    @property
    def of_the_program(self) -> bool:
        """Whether a program that runs has to be started anew to be as it is said here."""
        return self.command is not None or self.port is not None

    def check(self) -> None:
        """Raise `InvalidWorkspaceError` for the first rule that is broken."""
        if self.owner is not None:
            _check_line("owner", self.owner, most=_MOST_OWNER)
        if self.command is not None:
            _check_command(self.command)
        if self.port is not None:
            _check_port(self.port)
        if self.standby_ttl_seconds is not None:
            check_ttl("standby_ttl_seconds", self.standby_ttl_seconds)
        if self.archive_ttl_seconds is not None:
            check_ttl("archive_ttl_seconds", self.archive_ttl_seconds)
        if self.probe:
            check_probe(self.probe)


class Workspace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A workspace as it was read. The fields are the columns of the stores."""

    id: WorkspaceId
    name: str
    owner: str
    command: tuple[str, ...]
    port: int
    node_id: str | None
    desired_state: DesiredState
    desired_by: DesiredBy
    version: int
    observed_status: ObservedStatus
    observed_at: Ms | None
    """None until somebody has looked."""
    status_changed_at: Ms
    operation: Operation
    op_id: OpId | None
    op_started_at: Ms | None
    op_tries: int
    archive_key: str | None
    error_reason: str | None
    error_message: str | None
    standby_ttl_seconds: int
    archive_ttl_seconds: int
    last_access_at: Ms
    check_after: Ms
    """When the TTL manager looks next. Never later than it may become due, often earlier."""
    created_at: Ms
    deleted_at: Ms | None
    hold_reason: str | None
    hold_until: Ms | None
    next_port: int | None = None
    """The port from its next start on; ``port`` is where the program that runs was told to listen."""
    probe: str | None = None
    probed_at: Ms | None = None
    """When its program last answered the probe."""
    probe_error: str | None = None
    """Why its program did not answer the probe the last time; None: it did, or was not asked."""
    running_since: Ms = Ms(0)
    """When it became RUNNING. A restart after its program ended by itself does not change it; 0: not noted yet."""
    restarts: int = 0
    """How often in a row its program ended by itself and was to be started again; a person's wish sets it to 0."""
    exit_status: int | None = None
    """How its program last ended by itself: its exit code, or minus the number of a signal; None: not known."""
    exited_at: Ms | None = None
    exit_output: str | None = None
    """The last lines of that program."""
    error_status: ObservedStatus | None = None
    """What is seen while an error stands: STANDBY or RUNNING means that the data is in place."""
    op_note: str | None = None
    """What is to be known of an operation while it is under way."""
    hold_by: str | None = None
    hold_is_legal: bool = False
    """Whether it is held until another person than ``hold_by`` releases it."""
    extended_until: Ms | None = None
    """Until when a person has given it time, whatever its TTLs say."""
    trash_until: Ms | None = None
    """Of one that is deleted: until when it lies in the trash, as an archive; None: it is removed."""

    @property
    def awaits_restart(self) -> bool:
        """Whether its program ended by itself and is to be started again."""
        stopped = self.observed_status is ObservedStatus.STANDBY and self.desired_state is DesiredState.RUNNING
        return stopped and self.restarts > 0

    def held(self, now: Ms) -> bool:
        """Whether somebody holds it at ``now``: nothing lapses then."""
        return self.hold_reason is not None and (self.hold_end is None or now < self.hold_end)

    @property
    def hold_end(self) -> Ms | None:
        """When a hold on it ends; None: not by itself, as where what stands for its end is no time."""
        return self.hold_until if is_set(self.hold_until) and not self.hold_is_legal else None

    @property
    def candidate(self) -> WorkspaceCandidate:
        """The state that a decision about it was made on."""
        return WorkspaceCandidate(self.id, self.version, self.last_access_at, self.status_changed_at)

    @property
    def check_place(self) -> CheckPlace:
        """Where it stands among the candidates: the next page is asked for with ``after=workspace.check_place``."""
        return CheckPlace(self.check_after, self.id)


class WorkspaceCandidate(msgspec.Struct, frozen=True, gc=False):
    """A workspace and all that a decision by TTL was made on, to be compared when the decision is carried out.

    Version covers TTLs, holds, extensions and what is wanted; the state itself is compared by the statement.
    """

    id: WorkspaceId
    version: int
    last_access_at: Ms
    status_changed_at: Ms


class ProbeAnswer(msgspec.Struct, frozen=True, gc=False):
    """What a program said to its probe."""

    probe: str
    """What it was asked."""
    at: Ms | None
    """When it answered; None: it did not."""
    problem: str | None = None
    """Why it did not."""


class CheckPlace(msgspec.Struct, frozen=True, gc=False):
    """A place in the order in which candidates are looked at; ids decide between those of the same moment."""

    check_after: Ms
    id: WorkspaceId


# --- rules -----------------------------------------------------------------------------------------------------------


def check_name(name: str) -> None:
    """Raise unless it can be part of a host name."""
    if not is_name(name):
        expected = "a DNS label: 1 to 63 lower-case letters, digits and hyphens, with a letter or digit at both ends"
        raise _invalid("name", repr(name), expected)


def is_name(name: str) -> bool:
    """Whether any workspace could have this name."""
    return _LABEL.fullmatch(name) is not None


def is_id(text: str) -> bool:
    """Whether any workspace could have this id."""
    return _UUID.fullmatch(text) is not None


def check_ttl(field: str, seconds: int) -> None:
    """Raise unless it is a TTL that somebody can mean: zero would end everything at once, a century nothing ever."""
    if not _is_whole(seconds) or not 1 <= seconds <= LONGEST_TTL_SECONDS:
        expected = (
            f"a whole number of seconds from 1 to {LONGEST_TTL_SECONDS} (10 years); to keep one for good, hold it"
        )
        raise _invalid(field, seconds, expected)


def check_probe(probe: str) -> None:
    """Raise unless a program can be asked like this. Only its own port: Lapse calls no other address for anybody."""
    if probe != JUPYTER and not (_PATH.fullmatch(probe) and len(probe) <= _MOST_PROBE):
        raise _invalid("probe", repr(probe), f"{JUPYTER}, or a path on its port such as /api/activity")


def check_hold(reason: str, until: Ms | None, *, now: Ms) -> None:
    """Raise unless the hold says why, and ends in the future if it ends."""
    if not is_reason(reason):
        raise _invalid("hold_reason", "one that cannot be shown", REASON_FORM)
    if until is not None and (not _is_whole(until) or not now < until < _LATEST):
        raise _invalid("hold_until", until, "a time in the future (Unix milliseconds, before the year 10000), or none")


def check_extension(until: Ms, *, now: Ms) -> None:
    """Raise unless it is a time in the future."""
    if not (is_set(until) and until > now):
        raise _invalid("extended_until", until, "a time in the future (Unix milliseconds, before the year 2262)")


def check_limit(limit: int) -> None:
    """Raise unless it is the size of a page."""
    if not _is_whole(limit) or not 1 <= limit <= LARGEST_PAGE:
        raise InvalidPageSizeError(given=limit, limit=LARGEST_PAGE)


def storable(text: str) -> str:
    """Return a text of a program or a system as every store can keep it: no NUL, valid UTF-8, not endless."""
    readable = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return readable if len(readable) <= _MOST_MESSAGE else f"{readable[: _MOST_MESSAGE - 3]}..."


def _check_port(port: int) -> None:
    if not _is_whole(port) or not 1 <= port <= _HIGHEST_PORT:
        raise _invalid("port", port, f"a whole number from 1 to {_HIGHEST_PORT}")


def how_it_ended(status: int | None) -> str:
    """Say in words what the exit status of a program means; a negative one is a signal."""
    if status is None:
        return "in an unknown way"
    return f"by signal {-status}" if status < 0 else f"with status {status}"


def _check_command(command: tuple[str, ...]) -> None:
    words = f"1 to {_MOST_WORDS} words, the first of them the program"
    if not 1 <= len(command) <= _MOST_WORDS or not command[0]:
        raise _invalid("command", f"{len(command)} words", words)
    if any("\0" in word or not _is_utf8(word) for word in command):
        raise _invalid("command", "one with a NUL character or invalid UTF-8", "text that a program can be given")
    size = sum(len(word.encode()) for word in command)
    if size > _MOST_COMMAND_BYTES:
        raise _invalid("command", f"{size} bytes long", f"at most {_MOST_COMMAND_BYTES} bytes")


def _check_line(field: str, text: str, *, most: int) -> None:
    if not 1 <= len(text) <= most or not text.isprintable() or not text.strip():
        raise _invalid(field, repr(text), f"1 to {most} printable characters in one line")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _invalid(field: str, given: object, expected: str) -> InvalidWorkspaceError:
    shown = str(given)
    if len(shown) > _SHOWN:
        shown = f"{shown[:_SHOWN]}..."
    return InvalidWorkspaceError(field=field, given=shown, expected=expected)
