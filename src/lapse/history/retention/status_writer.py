"""Tells what came of each policy: in the log, in the metrics and in the policy's own status.

The log has a warning when something becomes wrong or is wrong in another way, and no more than a line at info as long
as it stays so. A status that cannot be written is no reason to stop anything.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from lapse.core.clock import UnixNs
from lapse.core.log import get_logger
from lapse.engine.running.metrics import ErrorKind
from lapse.history.api.kinds import RETENTION_POLICY
from lapse.history.retention.runs import RunReason, status_changes
from lapse.kube.errors import ConflictError, InvalidError, NotFoundError, ObjectError

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.engine.running.metrics import Metrics
    from lapse.history.api.kinds import RetentionPolicy
    from lapse.history.retention.runs import PolicyRun
    from lapse.objects.port import ObjectStore

_log = get_logger("lapse.history")


class Teller:
    """See the module."""

    def __init__(self, store: ObjectStore, *, metrics: Metrics, clock: Clock) -> None:
        """Nothing was told yet."""
        self._store, self._metrics, self._clock = store, metrics, clock
        self._said: dict[str, tuple[RunReason, str]] = {}

    async def tell(
        self, run: PolicyRun, policy: RetentionPolicy, *, in_status: bool, next_run: UnixNs | None = None
    ) -> None:
        """Tell of one run; ``in_status`` also there, if the policy is stored."""
        self._say(run)
        if in_status and policy.metadata.uid:
            await self._write_status(run, policy, next_run=next_run)

    def _say(self, run: PolicyRun) -> None:
        said, self._said[run.name] = self._said.get(run.name), (run.reason, run.message)
        if run.is_ready:
            told: dict[str, Any] = {"matched": run.matched, "kept": run.kept, "dry_run": run.dry_run}
            _log.info("policy_passed", policy=run.name, deleted=run.deleted, **told)
            return
        if run.reason is not RunReason.FROZEN:  # that is told by a metric of its own, and is no failure
            self._metrics.failed(run.domain, ErrorKind.POLICY)
        log = _log.info if said == (run.reason, run.message) else _log.warning
        log("policy_failed", policy=run.name, reason=run.reason, problem=run.message)

    async def _write_status(self, run: PolicyRun, policy: RetentionPolicy, *, next_run: UnixNs | None) -> None:
        changes = status_changes(run, policy, now=UnixNs(self._clock.wall_ns()), next_run=next_run)
        meta = policy.metadata
        patch = partial(self._store.patch_status, RETENTION_POLICY, meta.key, changes, uid=meta.uid)
        try:
            try:
                await patch(version=meta.resource_version)
            except ConflictError:  # changed during the pass: the status names the generation that it is about
                await patch()
        except (ConflictError, NotFoundError, InvalidError):
            pass  # gone, or another one by now, or one that the store would not take any more: the log tells
        except ObjectError as error:
            self._metrics.failed(run.domain, ErrorKind.POLICY)
            _log.warning("status_not_written", policy=run.name, error=type(error).__name__, reason=str(error))
