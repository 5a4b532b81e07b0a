from __future__ import annotations

from typing import Any

import pytest

from lapse.cli.cluster import OldServerError, demand_version


@pytest.mark.parametrize(
    "answer",
    [
        {"major": "1", "minor": "29"},
        {"major": "1", "minor": "35"},
        {"major": "1", "minor": "29+"},
        {"major": "2", "minor": "0"},
        {"major": "", "minor": ""},
        {},
    ],
)
def test_a_server_that_is_new_enough_or_does_not_tell_is_taken(answer: dict[str, Any]) -> None:
    demand_version(answer, place="https://here")


@pytest.mark.parametrize(("minor", "shown"), [("28", "1.28"), ("9", "1.9"), ("27+", "1.27")])
def test_a_server_that_is_too_old_is_refused_with_what_is_needed(minor: str, shown: str) -> None:
    with pytest.raises(OldServerError, match=rf"https://here is of version {shown}; .* need 1\.29 or newer"):
        demand_version({"major": "1", "minor": minor}, place="https://here")
