"""``lapse config`` and ``lapse tokens`` as a person runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.servers.lapse_server import clean_environment, lapse

if TYPE_CHECKING:
    from pathlib import Path


def test_config_show_prints_every_key_with_value_and_origin_and_masks_passwords(tmp_path: Path) -> None:
    (tmp_path / "lapse.toml").write_text('[http]\nport = 9000\n[log]\nlevel = "debug"\n')
    table = lapse("config", "show", "--log-level=error", state_dir=tmp_path)
    rows = json.loads(lapse("config", "show", "-o", "json", state_dir=tmp_path).stdout)["items"]

    assert table.returncode == 0
    assert "flag --log-level" in table.stdout
    assert {"key": "http_port", "value": "9000", "origin": "lapse.toml:2"} in rows
    assert {"key": "probes_port", "value": "8751", "origin": "default"} in rows


def test_config_check_says_yes_or_lists_everything_that_is_wrong(tmp_path: Path) -> None:
    fine = lapse("config", "check", state_dir=tmp_path)
    (tmp_path / "lapse.toml").write_text('[http]\nprot = 9000\n\n[keys]\nsweep_interval = "10minutes"\n')
    wrong = lapse("config", "check", state_dir=tmp_path)

    assert fine.returncode == 0
    assert wrong.returncode == 64
    assert "lapse.toml:2: http.prot: no such key; did you mean port under [http]?" in wrong.stderr
    assert "lapse.toml:5: keys_sweep_interval: '10minutes' is not a duration" in wrong.stderr


def test_a_token_is_printed_once_alone_on_stdout_and_then_only_listed(tmp_path: Path) -> None:
    made = lapse("tokens", "create", "--name=ci", "--scope=read", "--scope=keys:7", state_dir=tmp_path)
    listed = lapse("tokens", "list", "-o", "json", state_dir=tmp_path)
    (row,) = json.loads(listed.stdout)["items"]
    token = made.stdout.strip()

    assert made.returncode == 0
    assert len(made.stdout.splitlines()) == 1
    assert token.startswith(f"lapse_{row['id']}_")
    assert (row["name"], row["scopes"], row["revoked_at"]) == ("ci", ["read", "keys:7"], None)
    assert token not in listed.stdout
    assert lapse("tokens", "revoke", row["id"], state_dir=tmp_path).returncode == 0
    assert row["id"] in lapse("tokens", "list", state_dir=tmp_path).stdout


def test_wrong_usage_of_tokens_is_explained(tmp_path: Path) -> None:
    no_scope = lapse("tokens", "create", "--name=ci", state_dir=tmp_path)
    bad_scope = lapse("tokens", "create", "--name=ci", "--scope=everything", state_dir=tmp_path)
    unknown = lapse("tokens", "revoke", "abc", state_dir=tmp_path)

    assert (no_scope.returncode, bad_scope.returncode, unknown.returncode) == (64, 64, 1)
    assert "--scope" in no_scope.stderr
    assert "Expected admin, operate, approve, holds, legal, read, monitor, keys:APP" in bad_scope.stderr
    assert "no token abc" in unknown.stderr


def test_help_imports_neither_a_backend_nor_the_web_framework(tmp_path: Path) -> None:
    script = (
        "import sys; from lapse.cli import main\n"
        "for words in (['--help'], ['up', '--help'], ['config', '--help'], ['tokens', '--help']):\n"
        "    assert main(words) == 0\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=clean_environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )

    assert "--keys-sweep-interval" in result.stdout
    assert "'cyclopts'" in result.stderr
    for heavy in ("apsw", "fastapi", "starlette", "uvicorn", "pydantic", "prometheus_client", "asyncio"):
        assert f"'{heavy}'" not in result.stderr
