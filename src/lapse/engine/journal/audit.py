"""Rows of the audit about what has happened already: written as well as can be, and never a reason to fail.

For acts that can be seen elsewhere and must not be undone because the journal is away, such as a workspace that was
created. Whatever must not happen without a row is written by the journal itself, before the act or with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.core.log import get_logger
from lapse.engine.running.metrics import ErrorKind

if TYPE_CHECKING:
    from lapse.engine.journal.port import Entry, Journal
    from lapse.engine.running.metrics import Metrics

_log: Final = get_logger("lapse.engine.journal.audit")


async def tell(journal: Journal, row: Entry, *, domain: str, metrics: Metrics | None = None) -> bool:
    """Write a row; return whether it was written. Where not, that is logged, and counted as an error of ``domain``."""
    try:
        await journal.append(row)
    except Exception as error:  # noqa: BLE001 - what was done is done
        _log.error("not_journalled", domain=domain, address=row.address, reason=row.reason, error=type(error).__name__)
        if metrics is not None:
            metrics.failed(domain, ErrorKind.JOURNAL)
        return False
    return True
