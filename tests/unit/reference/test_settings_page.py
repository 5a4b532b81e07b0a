from __future__ import annotations

from pathlib import Path

import pytest

from lapse.settings import SETTINGS, load_settings, show_value
from tests.markdown import REFERENCE, table

ROWS = {
    row["key"].strip("`"): row
    for row in table(REFERENCE / "settings.md", "key", "type", "default", "environment", "flag", "meaning")
}
DERIVED = {"state_dir": "`~/.local/state/lapse`", "keys_url": "`keys.db` in `state_dir`", "http_allowed_hosts": "none"}
DERIVED |= {"workspaces_url": "`workspaces.db` in `state_dir`"}
DERIVED |= dict.fromkeys(
    (
        "retention_policies",
        "hold_kinds",
        "dry_run_domains",
        "act_by_plan",
        "webhooks",
        "domains",
        "activity_url",
        "database_url",
        "kube_config",
        "kube_context",
        "http_tls_certificate",
        "http_tls_key",
        "webhook_cert_file",
        "webhook_key_file",
    ),
    "none",
)


def test_the_page_lists_exactly_the_keys_there_are() -> None:
    assert list(ROWS) == list(SETTINGS)


@pytest.mark.parametrize("key", SETTINGS)
def test_a_key_is_described_as_in_the_model(key: str) -> None:
    field = SETTINGS[key]

    assert ROWS[key]["meaning"] == field.meaning
    assert ROWS[key]["environment"] == f"`LAPSE_{key.upper()}`"
    assert ROWS[key]["flag"] == f"`--{key.replace('_', '-')}`"
    assert ROWS[key]["default"] == DERIVED.get(key, f"`{show_value(field.default)}`")


def test_the_defaults_that_follow_from_others_are_as_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("LAPSE_CONFIG", "XDG_STATE_HOME", *(f"LAPSE_{key.upper()}" for key in SETTINGS)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    settings = load_settings().settings

    assert settings.state_dir == Path("~/.local/state/lapse").expanduser()
    assert settings.keys_url == (settings.state_dir / "keys.db").as_uri()
    assert settings.workspaces_url == (settings.state_dir / "workspaces.db").as_uri()
    assert settings.http_allowed_hosts == ()
