"""The API server's own record of who asked it for what: a witness that no restart and no lost watch can blind."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from lapse.requests.api.kinds import OUR_KINDS
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lapse.kube.resources import Kind

WATCHED: tuple[Kind[Any], ...] = (
    *OUR_KINDS,
    VOLUME_SNAPSHOT_CONTENT,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
)
DELETIONS = frozenset({"delete", "deletecollection"})
FIRST_REFUSAL = 300
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "Metadata", "verbs": sorted(DELETIONS)},
        {"level": "None"},
    ],
}


class AuditedObject(NamedTuple):
    """What a request was about; ``name`` is empty for a list or a watch."""

    resource: str
    name: str


class Call(NamedTuple):
    """One request, whatever came of it."""

    user: str
    verb: str
    target: AuditedObject
    code: int


class Audit:
    """Begins with nothing; ``flags`` make an API server write it."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "audit.log"
        policy = folder / "audit-policy.json"
        policy.write_text(json.dumps(POLICY), encoding="ascii")
        self.flags = (f"--audit-policy-file={policy}", f"--audit-log-path={self._file}")

    def mark(self) -> int:
        """Now, for `calls` since then."""
        return self._file.stat().st_size

    def calls(self, since: int) -> list[Call]:
        """What was asked since a mark, each once."""
        found = {event["auditID"]: _call(event) for event in self._lines(since)}
        return list(found.values())

    def events(self, *, user: str) -> list[dict[str, Any]]:
        """Everything that somebody asked, as the server tells it."""
        return [event for event in self._lines(0) if event["user"]["username"] == user]

    def _lines(self, since: int) -> Iterator[dict[str, Any]]:
        with self._file.open("rb") as file:
            file.seek(since)
            for line in file:
                if line.endswith(b"\n"):  # an API server that was killed leaves half a line
                    yield json.loads(line)

    def deleted(self, since: int) -> set[AuditedObject]:
        """What of ours was deleted since a mark, by whomever."""
        ours = {kind.plural for kind in WATCHED}
        return {
            call.target
            for call in self.calls(since)
            if call.verb in DELETIONS and call.target.resource in ours and call.code < FIRST_REFUSAL
        }

    def counts(self, since: int, *, user: str) -> Counter[tuple[str, AuditedObject]]:
        """How often somebody asked for each single thing."""
        return Counter((call.verb, call.target) for call in self.calls(since) if call.user == user)


def _call(event: dict[str, Any]) -> Call:
    about = event.get("objectRef", {})
    resource = "/".join(filter(None, (about.get("resource"), about.get("subresource"))))
    target = AuditedObject(resource, about.get("name", ""))
    return Call(event["user"]["username"], event["verb"], target, event.get("responseStatus", {}).get("code", 0))
