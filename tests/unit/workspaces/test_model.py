"""What people are told when they ask for a workspace that cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.workspaces.errors import InvalidWorkspaceError, StoreMisfitError, WorkspaceStoreUnavailableError
from lapse.workspaces.model import LONGEST_TTL_SECONDS, NewWorkspace, check_ttl, is_id, is_name, storable
from lapse.workspaces.store.sqlite import open_sqlite_store

if TYPE_CHECKING:
    from pathlib import Path

CENTURY = 100 * 365 * 86_400


def new(**changes: Any) -> NewWorkspace:  # noqa: ANN401
    return NewWorkspace(**{"name": "notes", "owner": "ada", "command": ("serve",), "port": 8080, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"standby_ttl_seconds": 0}, "standby_ttl_seconds of a workspace cannot be 0; expected .* from 1 to 315360000"),
        ({"archive_ttl_seconds": CENTURY}, f"archive_ttl_seconds .* cannot be {CENTURY}; expected .*10 years"),
        ({"standby_ttl_seconds": True}, "cannot be True"),
        ({"standby_ttl_seconds": 1.5}, "cannot be 1.5"),
        ({"name": "No Tes"}, "name of a workspace cannot be 'No Tes'; expected a DNS label"),
        ({"name": "a" * 200}, r"cannot be 'a+\.\.\.; expected"),
        ({"port": 70_000}, "port of a workspace cannot be 70000; expected a whole number from 1 to 65535"),
        ({"command": ()}, "command of a workspace cannot be 0 words; expected 1 to 256 words"),
    ],
)
def test_a_broken_rule_is_named_with_what_was_given_and_expected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidWorkspaceError, match=message):
        new(**changes).check()


def test_a_command_is_never_shown() -> None:
    with pytest.raises(InvalidWorkspaceError) as caught:
        new(command=("serve", "--token=secret\0")).check()
    assert "secret" not in str(caught.value)


def test_the_limits_themselves_are_allowed() -> None:
    new(name="a", port=1, standby_ttl_seconds=1).check()
    new(name="0" * 63, port=65_535, archive_ttl_seconds=LONGEST_TTL_SECONDS).check()
    check_ttl("standby", LONGEST_TTL_SECONDS)


def test_names_and_ids_are_told_from_other_text() -> None:
    assert is_name("a-b")
    assert not any(map(is_name, ("", "a.b", "a-", "A", "ä", "a\n", "..")))
    assert is_id("00000000-0000-4000-8000-000000000000")
    assert not any(
        map(is_id, ("", "notes", "00000000-0000-4000-8000-00000000000G", "00000000-0000-4000-8000-000000000000\n"))
    )


def test_a_text_that_can_be_kept_is_kept_as_it_is() -> None:
    assert storable("exit 1: мир") == "exit 1: мир"


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceStoreUnavailableError, match=r"missing/w\.db: the folder .* does not exist"):
        open_sqlite_store(tmp_path / "missing" / "w.db")
    (tmp_path / "text").write_text("not a database, but long enough to be read as the header of one, which it is not")
    with pytest.raises(StoreMisfitError, match="text: it is not a SQLite database"):
        open_sqlite_store(tmp_path / "text")
