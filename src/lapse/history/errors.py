"""Errors of what people write about retention: field paths, policies and flags."""

from __future__ import annotations

from lapse.core.errors import UsageError


class FieldPathError(UsageError, ValueError):
    """{text!r} is not a field path: {problem}.

    Expected names with dots between them, as in status.phase; odd names in brackets, as in metadata.labels['a.b/c'];
    items of lists by number, as in spec.containers[0].name.
    """


class RetentionPolicyError(UsageError, ValueError):
    """The retention policy {name} cannot be used: {problem}."""


class HistorySettingError(UsageError, ValueError):
    """{flag} cannot be {given}: {problem}. Expected {expected}."""
