from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import VirtualClock
from lapse.files.ownership import StateFolderError
from lapse.web.api.errors import TokenInvalidError
from lapse.web.auth.state import StateDatabase
from lapse.web.auth.tokens import FILE_NAME, TokenStore, owner_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def state(folder: Path) -> Iterator[StateDatabase]:
    with StateDatabase(folder) as state:
        yield state


@pytest.fixture
def tokens(state: StateDatabase) -> TokenStore:
    return TokenStore(state, clock=VirtualClock())


def test_the_owner_s_token_lies_in_a_file_that_only_the_owner_reads_and_may_do_everything(
    folder: Path, state: StateDatabase, tokens: TokenStore
) -> None:
    token_id, token = owner_of(folder, state, tokens)
    path = folder / FILE_NAME

    assert path.read_text() == f"{token}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert tokens.principal(token).scopes == {"admin"}
    assert owner_of(folder, state, tokens) == (token_id, token), "found, not made again"


def test_the_owner_s_token_is_no_token_of_a_person(folder: Path, state: StateDatabase, tokens: TokenStore) -> None:
    owner_of(folder, state, tokens)
    assert not tokens.any_named()
    tokens.create("ops", ["admin"])
    assert tokens.any_named()


def test_a_revoked_owner_s_token_is_replaced(folder: Path, state: StateDatabase, tokens: TokenStore) -> None:
    token_id, token = owner_of(folder, state, tokens)
    tokens.revoke(token_id)
    _, other = owner_of(folder, state, tokens)

    with pytest.raises(TokenInvalidError):
        tokens.principal(token)
    assert tokens.principal(other).scopes == {"admin"}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_can_read_or_write_is_not_trusted_any_more(
    folder: Path, state: StateDatabase, tokens: TokenStore, mode: int
) -> None:
    _, token = owner_of(folder, state, tokens)
    (folder / FILE_NAME).chmod(mode)
    _, other = owner_of(folder, state, tokens)

    assert other != token
    assert stat.S_IMODE((folder / FILE_NAME).stat().st_mode) == 0o600
    with pytest.raises(TokenInvalidError):
        tokens.principal(token)


def test_a_link_is_neither_followed_nor_written_through(
    folder: Path, state: StateDatabase, tokens: TokenStore, tmp_path: Path
) -> None:
    planted = tmp_path / "planted"
    planted.write_text(tokens.create("mallory", ["admin"])[1])
    planted.chmod(0o600)
    (folder / FILE_NAME).symlink_to(planted)
    before = planted.read_text()
    _, token = owner_of(folder, state, tokens)

    assert token != before.strip()
    assert planted.read_text() == before
    assert not (folder / FILE_NAME).is_symlink()


def test_two_processes_that_begin_at_once_agree(folder: Path, state: StateDatabase, tokens: TokenStore) -> None:
    with StateDatabase(folder) as second:
        assert owner_of(folder, state, tokens) == owner_of(folder, second, TokenStore(second, clock=VirtualClock()))


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777])
def test_a_state_folder_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(StateFolderError, match="can be written by other users"):
        StateDatabase(tmp_path / "open")
    assert list((tmp_path / "open").iterdir()) == []


def test_a_state_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir(mode=0o755)
    if os.geteuid() == 0:
        os.chown(tmp_path / "theirs", 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(StateFolderError, match="belongs to another user"):
        StateDatabase(tmp_path / "theirs")
