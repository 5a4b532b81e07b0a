from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lapse.cli import main
from lapse.cli.flags import AllFlags, StateFlags
from lapse.core.duration import NEVER, Duration
from lapse.db.postgres.url import PostgresURL
from lapse.history.policy import default_policy
from lapse.history.policy.rbac import ACCOUNT
from lapse.settings import (
    FOUNDING_NAMES,
    FOUNDING_SECONDS,
    SETTINGS,
    Settings,
    SettingsError,
    load_settings,
    show_value,
)
from lapse.workspaces.model import DEFAULT_ARCHIVE_TTL_SECONDS, DEFAULT_STANDBY_TTL_SECONDS

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet


@pytest.fixture(autouse=True)
def _nothing_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in an empty folder, with no setting in the environment."""
    for name in list(os.environ):
        if name.startswith("LAPSE_") or name in FOUNDING_SECONDS:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def write(text: str, path: str = "lapse.toml") -> Path:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
    return Path(path)


def problems(flags: dict[str, str | None] | None = None, config: str | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, config=config)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


# --- which value counts ----------------------------------------------------------------------------------------------


def test_without_anything_the_defaults_are_embedded_and_local(tmp_path: Path) -> None:
    loaded = load_settings()

    assert loaded.settings.state_dir == tmp_path / "state" / "lapse"
    assert loaded.settings.keys_url == f"file://{tmp_path}/state/lapse/keys.db"
    assert (loaded.settings.http_host, loaded.settings.http_port) == ("127.0.0.1", 8750)
    assert (loaded.settings.probes_host, loaded.settings.probes_port) == ("127.0.0.1", 8751)
    assert loaded.settings.keys_sweep_interval == Duration.of_seconds(1)
    assert {str(origin) for origin in loaded.origins.values()} == {"default"}


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    write('[http]\nport = 1\n[probes]\nport = 1\n[log]\nlevel = "debug"\n')
    monkeypatch.setenv("LAPSE_HTTP_PORT", "2")
    monkeypatch.setenv("LAPSE_PROBES_PORT", "2")
    loaded = load_settings({"http_port": "3", "log_format": None})
    origins = {key: str(loaded.origins[key]) for key in ("http_port", "probes_port", "log_level", "log_format")}

    assert (loaded.settings.http_port, loaded.settings.probes_port, loaded.settings.log_level) == (3, 2, "debug")
    assert origins == {
        "http_port": "flag --http-port",
        "probes_port": "environment LAPSE_PROBES_PORT",
        "log_level": "lapse.toml:6",
        "log_format": "default",
    }


def each_key(key: str) -> ParameterSet:
    """A parameter for a setting; what names a server is read by its driver, which `make test` does not have."""
    by_driver = key in {"activity_url", "database_url", "workspaces_url"}
    return pytest.param(key, marks=[pytest.mark.driver] if by_driver else [])


@pytest.mark.parametrize("key", [each_key(key) for key in SETTINGS])
def test_every_key_has_the_same_name_in_file_environment_and_flags(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = {"keys_url": "memory://", "keys_sweep_interval": "2s", "http_allowed_hosts": "a.example.org"}
    samples |= {"http_port": "1", "probes_port": "1", "log_format": "json", "log_level": "debug", "state_dir": "/x"}
    samples |= {"request_ttl": "5m", "request_ttl_mode": "annotation", "request_deadline": "5m", "keeper_ttl": "5m"}
    samples |= {"journal_ttl": "5d", "trash_ttl": "3d", "extend_max": "4d", "plan_ttl": "2h"}
    samples["act_by_plan"] = "requests"
    samples |= {"keeper_mode": "FollowObject", "restore_ownership": "keeper", "artifact_ttl_max": "60d"}
    samples |= {"restore_executor": "external", "schedule_manifests": "admitted"}
    samples |= dict.fromkeys([name for name in SETTINGS if name.endswith("deletion_budget")], "500/1h")
    samples |= {"dry_run_domains": "requests"}
    samples |= {"history_namespace": "records", "history_ttl": "2000h", "retention_interval": "2h"}
    samples |= {"history_retention_limit": "7", "history_keep_last_success": "1"}
    samples |= {"webhooks": '[{"name": "ops", "url": "https://example.org", "secret_env": "OPS_SECRET"}]'}
    samples |= {"retention_policies": '[{"metadata": {"name": "jobs"}, "spec": {"maxCount": 3}}]'}
    samples |= {"lease_namespace": "storage", "lease_name": "captures", "webhook_port": "1"}
    samples |= {"kube_qps": "50", "kube_burst": "100", "hold_kinds": "v1/ConfigMap", "retention_account": "cleaner"}
    samples |= {"kube_config": "/x"}
    samples |= {
        "workspaces_url": "file:///x/w.db",
        "database_url": "postgresql://h/db",
        "activity_url": "redis://h",
        "proxy_suffix": "w.example.org",
    }
    samples |= {"workspaces_beyond_loopback": "true", "workspaces_stop_on_exit": "false", "proxy_scheme": "https"}
    samples |= dict.fromkeys(("default_standby_ttl", "default_archive_ttl", "ttl_manager_interval"), "7m")
    samples |= {"expiry_warning": "7m"}
    samples |= {"idle_timer": "7m", "busy_most": "7h", "proxy_lease": "7s", "proxy_port": "1"}
    samples |= dict.fromkeys([name for name in SETTINGS if "_max_connections" in name], "77")
    samples |= {"domains": '{"mine": {"folder": "/tmp"}}'}
    samples |= {"http_tls_certificate": "/x/tls.crt", "http_tls_key": "/x/tls.key"}
    beside = {"http_tls_certificate": "http_tls_key", "http_tls_key": "http_tls_certificate"}.get(key)
    if beside is not None:  # neither goes alone
        monkeypatch.setenv(f"LAPSE_{beside.upper()}", samples[beside])
    text = samples.get(key, "192.0.2.1")
    table, _, name = key.partition("_")
    lines = f"[{table}]\n{name} = {text if text.isdigit() else repr(text)}\n"
    whole = {
        "domains": "[domains.mine]\nfolder = '/tmp'\n",
        "webhooks": "[[webhooks]]\nname = 'ops'\nurl = 'https://example.org'\nsecret_env = 'OPS_SECRET'\n",
    }
    write(whole.get(key, lines), "config/lapse/lapse.toml")
    by_file = load_settings()
    monkeypatch.setenv(f"LAPSE_{key.upper()}", text)
    by_environment = load_settings()
    by_flag = load_settings({key: text})

    assert by_file.settings == by_environment.settings == by_flag.settings != Settings()
    assert [one.origins[key].layer for one in (by_file, by_environment, by_flag)] == ["file", "environment", "flag"]


@pytest.mark.parametrize("given", ["http_tls_certificate", "http_tls_key"])
def test_a_certificate_and_its_key_are_given_together_or_not_at_all(given: str) -> None:
    missing = {"http_tls_certificate": "http_tls_key"}.get(given, "http_tls_certificate")
    with pytest.raises(SettingsError, match=rf"flag --{given.replace('_', '-')}: .*expected {missing} beside it"):
        load_settings({given: "/x/tls.pem"})


def test_the_file_of_a_certificate_is_the_same_from_every_working_directory(tmp_path: Path) -> None:
    loaded = load_settings({"http_tls_certificate": "tls.crt", "http_tls_key": "~/tls.key"})
    assert loaded.settings.http_tls_certificate == str(Path.cwd() / "tls.crt")
    assert loaded.settings.http_tls_key == str(Path("~/tls.key").expanduser())


def test_there_is_a_flag_for_every_key() -> None:
    assert list(AllFlags.__annotations__) == ["config", *SETTINGS]


def test_a_flag_has_the_name_and_the_meaning_of_its_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["config", "show", "--help"]) == 0
    said = capsys.readouterr().out

    for key, declared in SETTINGS.items():
        assert re.search(rf"--{key.replace('_', '-')} STR +{re.escape(declared.meaning)}\. ", said), key


def test_what_is_given_as_flags_wins_and_is_all_that_is_given() -> None:
    flags = StateFlags(config=str(write("state_dir = '/file'\n", "other.toml")), state_dir="/flag")
    loaded = flags.load()

    assert (flags.given, StateFlags().given) == ({"state_dir": "/flag"}, {})
    assert (loaded.settings.state_dir, str(loaded.origins["state_dir"])) == (Path("/flag"), "flag --state-dir")


def test_defaults_are_those_of_the_domains() -> None:
    settings = Settings()

    assert settings.history_namespace == default_policy.DEFAULT_NAMESPACE
    assert settings.history_ttl == default_policy.DEFAULT_TTL
    assert settings.history_retention_limit == default_policy.DEFAULT_LIMIT
    assert settings.retention_account == ACCOUNT
    assert settings.default_standby_ttl.seconds == DEFAULT_STANDBY_TTL_SECONDS
    assert settings.default_archive_ttl.seconds == DEFAULT_ARCHIVE_TTL_SECONDS


def test_variables_are_found_whatever_their_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("lapse_http_port", "7")

    assert load_settings().settings.http_port == 7


def test_a_word_that_is_not_among_the_choices_is_told_with_them() -> None:
    told = problems({"log_format": "xml", "request_ttl_mode": "never"})

    assert told == [
        "flag --request-ttl-mode: request_ttl_mode = 'never': expected scanner or annotation",
        "flag --log-format: log_format = 'xml': expected auto, console or json",
    ]


def test_policies_are_tables_in_the_file_and_shown_by_name() -> None:
    write(
        '[[retention.policies]]\nmetadata.name = "jobs"\nspec.maxCount = 3\n'
        '[[retention.policies]]\n[retention.policies.metadata]\nname = "maps"\n'
    )
    loaded = load_settings()

    assert loaded.settings.retention_policies == (
        {"metadata": {"name": "jobs"}, "spec": {"maxCount": 3}},
        {"metadata": {"name": "maps"}},
    )
    assert ("retention_policies", "jobs, maps", "lapse.toml:1") in list(loaded.shown())


def test_a_key_may_also_stand_at_the_top_of_the_file_by_its_flat_name() -> None:
    write('keys_url = "memory://"\nhttp.port = 5\n')

    assert load_settings().settings.keys_url == "memory://"
    assert load_settings().settings.http_port == 5


def test_hosts_are_a_list_in_the_file_and_separated_by_commas_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    write('[http]\nallowed_hosts = ["A.example.org", "10.0.0.5:80"]\n')
    from_file = load_settings().settings.http_allowed_hosts
    monkeypatch.setenv("LAPSE_HTTP_ALLOWED_HOSTS", "a.example.org, 10.0.0.5:80")

    assert from_file == load_settings().settings.http_allowed_hosts == ("a.example.org", "10.0.0.5:80")


def test_the_sweep_can_be_told_never() -> None:
    assert load_settings({"keys_sweep_interval": "never"}).settings.keys_sweep_interval == NEVER


@pytest.mark.driver
def test_urls_follow_the_state_folder_unless_they_are_given() -> None:
    settings = load_settings({"state_dir": "/srv/a b"}).settings
    assert settings.keys_url == "file:///srv/a%20b/keys.db"
    assert settings.workspaces_url == "file:///srv/a%20b/workspaces.db"
    assert settings.database_url == ""
    url = "postgresql://db.example.org/lapse"
    given = load_settings({"database_url": url}).settings
    assert (given.database_url, given.workspaces_url) == (url, url)


@pytest.mark.driver
def test_the_old_name_of_the_database_means_the_same_and_goes_with_the_next_version() -> None:
    url = "postgresql://ada:hunter2@db.example.org/lapse"
    loaded = load_settings({"workspaces_url": url})
    assert (loaded.settings.database_url, loaded.settings.workspaces_url) == (url, url)
    (warning,) = loaded.deprecations
    assert warning in loaded.warnings
    assert warning == (
        "flag --workspaces-url: workspaces_url goes with the next version; set database_url, which means the same"
    )
    origins = [str(loaded.origins[key]) for key in ("database_url", "workspaces_url")]
    assert origins == ["flag --workspaces-url"] * 2, "a value that follows from another has its origin"
    follows = load_settings({"database_url": url})
    assert (str(follows.origins["workspaces_url"]), follows.deprecations) == ("flag --database-url", ())
    assert load_settings({"workspaces_url": url, "database_url": url}).settings.database_url == url

    file = load_settings({"workspaces_url": "file:///x/w.db"})
    assert (file.settings.database_url, file.settings.workspaces_url) == ("", "file:///x/w.db")
    assert file.deprecations[0].endswith("leave it out, and workspaces are in state_dir")
    assert load_settings({"database_url": url}).deprecations == ()


@pytest.mark.driver
@pytest.mark.parametrize("other", ["file:///x/w.db", "postgresql://ada:hunter3@db.example.org/other"])
def test_two_places_for_workspaces_are_refused(other: str) -> None:
    with pytest.raises(SettingsError, match="workspaces_url: it names another place than database_url") as caught:
        load_settings({"database_url": "postgresql://ada:hunter2@db.example.org/lapse", "workspaces_url": other})
    assert "hunter" not in str(caught.value)


# --- which file ------------------------------------------------------------------------------------------------------


def test_the_file_is_the_named_one_then_the_local_one_then_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    write("[http]\nport = 1\n", "config/lapse/lapse.toml")
    users = load_settings().settings.http_port
    write("[http]\nport = 2\n")
    local = load_settings().settings.http_port
    monkeypatch.setenv("LAPSE_CONFIG", str(write("[http]\nport = 3\n", "other.toml")))
    variable = load_settings().settings.http_port
    named = load_settings(config=write("[http]\nport = 4\n", "fourth.toml")).settings.http_port

    assert [users, local, variable, named] == [1, 2, 3, 4]


def test_a_file_that_was_named_and_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(config="absent.toml") == ["--config names absent.toml, which is not a file"]
    monkeypatch.setenv("LAPSE_CONFIG", "absent.toml")
    assert problems() == ["LAPSE_CONFIG names absent.toml, which is not a file"]


# --- whose file ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_may_write_is_refused_wherever_it_is(mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    write("[http]\nport = 2\n").chmod(mode)
    refusal = "lapse.toml: it can be written by other users, and settings can run programs; chmod go-w lapse.toml"

    assert problems() == [refusal]
    assert problems(config="lapse.toml") == [refusal]
    monkeypatch.setenv("LAPSE_CONFIG", "lapse.toml")
    assert problems() == [refusal]


@pytest.mark.parametrize("config", [None, "lapse.toml"])
def test_a_file_of_another_user_is_refused_wherever_it_is(config: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("[http]\nport = 2\n")
    be_another_user(path, monkeypatch)

    refusal = "lapse.toml: it belongs to another user, and settings can run programs; "
    assert problems(config=config) == [refusal + "use a file of your own, or work in another folder"]


def test_a_link_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    write("[http]\nport = 2\n", "mine.toml")
    Path("lapse.toml").symlink_to("mine.toml")
    assert load_settings().settings.http_port == 2
    if os.geteuid() != 0:
        pytest.skip("only root can give a link away")
    os.chown("lapse.toml", 12345, -1, follow_symlinks=False)

    refusal = "lapse.toml: it is a link of another user, and settings can run programs; "
    assert problems() == [refusal + "use a file of your own, or work in another folder"]


def be_another_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[kube]\nconfig = '/tmp/kube'", "kube.config"),
        ("state_dir = '/tmp/state'", "state_dir"),
        ("[workspaces]\nurl = 'file:///tmp/workspaces.db'", "workspaces.url"),
        pytest.param(
            "[workspaces]\nurl = 'postgresql://db.example.org/lapse'", "workspaces.url", marks=pytest.mark.driver
        ),
    ],
)
def test_nothing_that_can_run_programs_is_taken_from_the_working_directory(text: str, key: str, tmp_path: Path) -> None:
    write(text + "\n")
    (found,) = problems()
    line = text.count("\n") + 1

    assert found == (
        f"lapse.toml:{line}: {key}: not taken from the working directory, as it can run programs; "
        f"name the file with --config lapse.toml, or set the key in {tmp_path}/config/lapse/lapse.toml"
    )
    assert load_settings(config="lapse.toml").file is not None, "who names the file means it"
    write(text + "\n", "config/lapse/lapse.toml")
    Path("lapse.toml").unlink()
    assert load_settings().file is not None


@pytest.mark.parametrize("text", ["[kube]\nconfig = 'kube'", "state_dir = 'state'"])
def test_a_path_that_can_run_programs_does_not_depend_on_the_working_directory(text: str) -> None:
    write(text + "\n", "config/lapse/lapse.toml")
    (found,) = problems()

    assert "expected an absolute path" in found


# --- what is wrong ---------------------------------------------------------------------------------------------------


def test_everything_that_is_wrong_is_reported_at_once_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    write('# settings\n[keys]\nurl = "memory://"\nsweep_interval = "10minutes"\n\n[http]\nprot = 1\n')
    monkeypatch.setenv("LAPSE_HTTP_PORT", "65536")
    found = problems({"log_level": "loud"})

    assert len(found) == 4
    assert found[0] == "lapse.toml:7: http.prot: no such key; did you mean port under [http]?"
    assert found[1].startswith("lapse.toml:4: keys_sweep_interval: '10minutes' is not a duration")
    assert found[2].startswith(
        "environment LAPSE_HTTP_PORT: http_port = '65536': expected a port number from 0 to 65535"
    )
    assert found[3].startswith("flag --log-level: log_level = 'loud'")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[http]\nport = true", "lapse.toml:2: http_port = 'true': expected a port number"),
        ("[http]\nport = 8750.0", "lapse.toml:2: http_port = '8750.0': expected a port number"),
        ("[http]\nport = -1", "lapse.toml:2: http_port = '-1': expected a port number"),
        ("[http]\nhost = ''", "lapse.toml:2: http_host = '': expected a host name"),
        ("[http]\nallowed_hosts = ['http://x']", "lapse.toml:2: http_allowed_hosts = 'http://x': expected host names"),
        ("[http]\nallowed_hosts = ['*']", "lapse.toml:2: http_allowed_hosts = '*': expected host names"),
        ("[keys]\nsweep_interval = 1", "lapse.toml:2: keys_sweep_interval = '1': expected a text with a unit"),
        ("[keys]\nsweep_interval = '0s'", "lapse.toml:2: keys_sweep_interval = '0s': expected a duration above zero"),
        ("[keys]\nurl = 5", "lapse.toml:2: keys_url = '5': expected a URL"),
        ("[keys]\nurl = 'mongo://x'", "lapse.toml:2: keys_url: The keys URL mongo://x cannot be used"),
        ("[keys]\nurl = 'memory://?a=b'", "lapse.toml:2: keys_url: The keys URL memory:// cannot"),
        (
            "keys_url = 'memory://'\n[keys]\nurl = 'memory://'",
            "lapse.toml:3: keys.url: the key keys_url is given twice",
        ),
        ("[keys]\nurl = ", "lapse.toml:2: not valid TOML: "),
        ("[other]\nthing = 1", "lapse.toml:2: other.thing: no such key"),
        ("[history]\nretention_limit = -1", "lapse.toml:2: history_retention_limit = '-1': expected a whole number"),
        ("[history]\nnamespace = 'A'", "lapse.toml:2: history_namespace = 'A': expected a name of lower-case letters"),
        ("[retention]\ninterval = '0s'", "lapse.toml:2: retention_interval = '0s': expected a duration above zero"),
        ("[retention]\npolicies = 'x'", "lapse.toml:2: retention_policies: expected a list of RetentionPolicy doc"),
        ("[[retention.policies]]\na = 1", "lapse.toml:1: retention_policies: expected metadata.name in every policy"),
        (
            "[[retention.policies]]\nmetadata.name = 'a'\n[[retention.policies]]\nmetadata.name = 'a'",
            "lapse.toml:1: retention_policies: expected every policy to have a name of its own",
        ),
        (
            "[[retention.policies]]\nmetadata.name = 'history'",
            "lapse.toml:1: retention_policies: expected another name than history: that policy is made of history_ttl",
        ),
    ],
)
def test_a_wrong_value_is_named_with_line_key_given_and_rule(line: str, expected: str) -> None:
    write(line + "\n")
    found = problems()

    assert len(found) == 1
    assert found[0].startswith(expected)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("-1h", "it is below zero"),
        ("-720h", "it is below zero"),
        ("30m", "it is shorter than an hour"),
        ("59m59s", "it is shorter than an hour"),
        ("720", "it has no unit (seconds would be 720s)"),
        ("10minutes", "'minutes' is not a unit"),
    ],
)
def test_a_history_ttl_that_would_wipe_everything_is_one_line_with_the_flag_and_the_rule(
    text: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = f"history_ttl = '{text}': {problem}; expected 0 to keep records of any age, or 1h or more, such as 720h"

    assert problems({"history_ttl": text}) == [f"flag --history-ttl: {rule}"]
    write(f"[history]\nttl = '{text}'\n")
    assert problems() == [f"lapse.toml:2: {rule}"]
    monkeypatch.setenv("LAPSE_HISTORY_TTL", text)
    assert problems() == [f"environment LAPSE_HISTORY_TTL: {rule}"]


@pytest.mark.parametrize("text", ["0", "'0s'", "'1h'", "'720h'", "'never'"])
def test_a_history_ttl_is_off_or_at_least_an_hour(text: str) -> None:
    write(f"[history]\nttl = {text}\n")
    assert load_settings().settings.history_ttl == Duration.parse(text.strip("'"))


def test_a_history_ttl_below_a_day_is_a_warning_with_its_origin() -> None:
    assert load_settings({"history_ttl": "24h"}).warnings == ()
    assert load_settings({"history_ttl": "0"}).warnings == ()
    assert load_settings({"history_ttl": "90m"}).warnings == (
        "flag --history-ttl: history_ttl is 1h30m: records of experiments are deleted before they are a day old",
    )


def test_where_no_pass_over_all_records_is_ever_made_a_warning_says_what_that_means() -> None:
    assert load_settings({"retention_interval": "never", "history_ttl": "720h"}).warnings == ()
    (warning,) = load_settings({"retention_interval": "never"}).warnings
    assert warning.startswith("flag --retention-interval: retention_interval is never")
    assert warning.endswith("set history_ttl, or run lapse history prune")


def test_an_unknown_variable_is_a_warning_that_names_the_closest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPSE_HTTP_POTR", "1")

    assert load_settings().warnings == (
        "the environment variable LAPSE_HTTP_POTR is not a setting; did you mean LAPSE_HTTP_PORT?",
    )


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:hunter2@host:1/0?nope=1",
        "redis://:hunter2@host?nope=1",
        "redis://u:hun/ter2@host",
        "redis://u:a@hunter2@h?nope=1",
        "u:hunter2@h",
    ],
)
def test_a_password_in_a_url_is_never_shown(url: str) -> None:
    assert "hunter2" not in show_value(url)
    assert "ter2" not in show_value(url)
    assert "hunter2" not in "".join(problems({"keys_url": url}))


SECRET_URLS = [
    "postgresql://db.example.org/lapse?user=me&password=hunter2",
    "postgresql://db.example.org/lapse?pass%77ord=hunter2&sslmode=require",
    "postgresql://db.example.org/lapse?sslpassword=hunter2",
    "postgresql://me:x@db.example.org/lapse?password=hunter2@more",
    "redis://h?password=hunter2",
    "redis://h?Secret=hunter2",
    "redis://h?auth_token=hunter2",
    "redis://u:hunter2?x@h",
    "redis://h/0#password=hunter2",
    "host=db.example.org password=hunter2 dbname=lapse",
    "password = 'my hunter2'",
]


@pytest.mark.parametrize("url", SECRET_URLS)
@pytest.mark.parametrize(
    "key", [each_key(key) for key in ("keys_url", "database_url", "workspaces_url", "activity_url")]
)
def test_a_secret_behind_the_question_mark_is_never_shown_either(key: str, url: str) -> None:
    assert "hunter2" not in show_value(url)
    try:
        shown = str(list(load_settings({key: url}).shown()))
    except SettingsError as error:
        shown = f"{error} {error!r}"
    assert "hunter2" not in shown


ODD_PASSWORDS = st.text(alphabet="ЖЩЮ/?#@:%&=[]+ 12", min_size=1, max_size=12).filter(
    lambda text: set(text) & set("ЖЩЮ")
)
"""Each has letters that no message has, so that the smallest part of it is found."""


@pytest.mark.driver
@pytest.mark.parametrize("key", ["database_url", "workspaces_url"])
@pytest.mark.parametrize(
    "form",
    [
        "postgresql://lapse:{}@h.invalid/x",
        "postgresql://{}@h.invalid/x",
        "postgresql:///lapse:{}@h.invalid/x",
        "postgresql://h.invalid/x?password={}",
        "postgresql://h.invalid/x?pasword={}",
        "postgresql://h.invalid/x?sslmode=require&password={}&application_name=a",
        "host=h.invalid password={} dbname=x",
        "lapse:{}@h.invalid/x",
        "mysql://lapse:{}@h.invalid/x",
    ],
)
@given(password=ODD_PASSWORDS)
@example(password="pa/ssЖ")
@example(password="Ж@ssЖ")
@example(password="1/Ж")
@example(password="a&Ж")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_part_of_a_database_password_is_in_any_message(key: str, form: str, password: str) -> None:
    url = form.format(password)
    try:
        loaded = load_settings({key: url})
        shown = f"{list(loaded.shown())} {loaded.warnings} {PostgresURL.parse(url)!r}"
        shown += str(explain_url(url)) if url.startswith("postgresql") else ""
    except SettingsError as error:
        shown = f"{error} {error!r} {error.details}"
    assert not set(shown) & set("ЖЩЮ")
    assert not set(show_value(url) if url.startswith("postgresql") else "") & set("ЖЩЮ")


def explain_url(url: str) -> Exception:
    """Return what is said of a database that cannot be reached."""
    import psycopg

    from lapse.db.postgres.pool import explain_unreachable

    return explain_unreachable(psycopg.OperationalError("connection failed: no such host"), PostgresURL.parse(url))


@pytest.mark.driver
@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("postgresql://lapse:pa/ss@h.invalid/x", "an @ after its host; write / ? # @ in a password as %2F %3F %23 %40"),
        ("postgresql://lapse:p@ss@h.invalid/x", "two @ before its host; write / ? # @ in a password as %2F %3F"),
        ("postgresql://h/x?pasword=s3cret", "'pasword' is not an option of postgresql://; did you mean password"),
        ("postgresql://h/x?password=a&b=c", "an option behind a secret one is not an option of postgresql://"),
        ("postgresql://h/x?zork=1", "'zork' is not an option of postgresql://. Expected"),
        ("host=h password=s3cret", "it is a connection string of libpq (host=... dbname=...), not a URL"),
        ("postgresql://lapse:s3cret", "behind a user and password comes an @, and a port is a number"),
        ("postgresql://lapse:%zz@h/x", "libpq cannot read it"),
        ("postgresql://lapse:a\nb@h/x", "it has a character that cannot be printed"),
        ("mysql://h/x", "it does not begin with postgresql://"),
    ],
)
def test_a_database_url_that_cannot_be_used_is_told_without_its_value(url: str, problem: str) -> None:
    (told,) = problems({"database_url": url})
    assert told.startswith("flag --database-url: database_url: The PostgreSQL URL cannot be used: ")
    assert problem in told
    assert "s3cret" not in told


@pytest.mark.driver
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:x@db.example.org:5432/lapse?sslmode=require", "postgresql://db.example.org:5432/lapse"),
        ("postgres://me:a%40b%2F@h/x", "postgresql://h:5432/x"),
        ("postgresql://h,i:5433/x", "postgresql://h:5432,i:5433/x"),
        ("postgresql://me@[::1]/x", "postgresql://[::1]:5432/x"),
        ("postgresql:///x?host=/run/postgresql&ssl=true", "postgresql:///run/postgresql:5432/x"),
        ("postgresql://me@h", "postgresql://h:5432/"),
    ],
)
def test_of_a_database_url_host_port_and_database_are_shown(url: str, shown: str) -> None:
    assert show_value(load_settings({"database_url": url}).settings.database_url) == shown


@pytest.mark.parametrize(
    ("key", "url", "driver", "extra"),
    [
        ("database_url", "postgresql://h.invalid/x", "psycopg", "postgres"),
        ("workspaces_url", "postgresql://h.invalid/x", "psycopg", "postgres"),
        ("activity_url", "redis://h.invalid", "redis", "redis"),
    ],
)
def test_a_driver_that_is_not_installed_is_named_with_what_to_install(
    key: str, url: str, driver: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = ("lapse.workspaces.activity.redis", "lapse.db.redis", f"{driver}.")
    for name in [name for name in sys.modules if name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, driver, None)
    (told,) = problems({key: url})
    assert re.search(rf"its driver \({driver}\) is not installed; run pip install 'lapse\[{extra}\]'", told)


def test_options_that_are_no_secrets_are_shown() -> None:
    url = "redis://me:x@db.example.org:6379/0?timeout=2s&password=y&keyspace=a"
    assert show_value(url) == "redis://***@db.example.org:6379/0?timeout=2s&password=***&keyspace=a"
    assert show_value("file:///var/lib/lapse/keys.db?sync=full") == "file:///var/lib/lapse/keys.db?sync=full"


def test_a_path_with_an_at_sign_is_no_password() -> None:
    assert show_value("file:///home/me@work/keys.db") == "file:///home/me@work/keys.db"


@pytest.mark.parametrize("name", FOUNDING_NAMES)
def test_the_names_of_the_founding_documents_are_accepted_and_yield_to_ours(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = {"REQUEST_TTL_MODE": "annotation", "KEEPER_MODE": "FollowObject", "RESTORE_OWNERSHIP": "keeper"}
    other = {"REQUEST_TTL_MODE": "scanner", "KEEPER_MODE": "FollowObjectWithTTL", "RESTORE_OWNERSHIP": "user"}
    monkeypatch.setenv(name, good.get(name, "7m"))
    loaded = load_settings()
    assert str(getattr(loaded.settings, name.lower())) == good.get(name, "7m")
    assert str(loaded.origins[name.lower()]) == f"environment {name}"

    monkeypatch.setenv(f"LAPSE_{name}", other.get(name, "8m"))
    assert str(getattr(load_settings().settings, name.lower())) == other.get(name, "8m")


@pytest.mark.parametrize(("name", "key"), FOUNDING_SECONDS.items())
@pytest.mark.parametrize(("text", "seconds"), [("90", 90), (" 90 ", 90), ("5m", 300), ("PT2M", 120)])
def test_the_variables_of_seconds_are_numbers_or_durations_and_yield_to_ours(
    name: str, key: str, text: str, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    loaded = load_settings()
    assert getattr(loaded.settings, key) == Duration.of_seconds(seconds)
    assert str(loaded.origins[key]) == f"environment {name}"
    assert loaded.warnings == ()

    monkeypatch.setenv(f"LAPSE_{key.upper()}", "7s")
    assert getattr(load_settings().settings, key) == Duration.of_seconds(7)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TTL_MANAGER_INTERVAL", "0"),
        ("TTL_MANAGER_INTERVAL", "-60"),
        ("TTL_MANAGER_INTERVAL", "never"),
        ("TTL_MANAGER_INTERVAL", "1.5"),
        ("TTL_MANAGER_INTERVAL", "10minutes"),
        ("DEFAULT_STANDBY_TTL", "0"),
        ("DEFAULT_STANDBY_TTL", "500ms"),
        ("DEFAULT_ARCHIVE_TTL", "3153600000"),
        ("DEFAULT_ARCHIVE_TTL", "never"),
        ("IDLE_TIMER_SECONDS", "five"),
    ],
)
def test_seconds_that_cannot_be_meant_are_refused_with_their_variable(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    (problem,) = problems()
    assert problem.startswith(f"environment {name}: ")


def test_a_number_without_a_unit_is_no_duration_under_our_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPSE_TTL_MANAGER_INTERVAL", "60")
    (problem,) = problems()
    assert problem.startswith("environment LAPSE_TTL_MANAGER_INTERVAL: ttl_manager_interval")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ttl_manager_interval", "0s"),
        ("ttl_manager_interval", "never"),
        ("default_standby_ttl", "0s"),
        ("default_standby_ttl", "1500ms"),
        ("default_archive_ttl", "36500d"),
        ("idle_timer", "never"),
        ("proxy_lease", "0s"),
        ("proxy_port", "65536"),
        ("proxy_suffix", "http://x"),
        ("proxy_scheme", "ftp"),
        ("workspaces_url", "mysql://u:p@h/db"),
        pytest.param("database_url", "mysql://u:p@h/db", marks=pytest.mark.driver),
        pytest.param("database_url", "file:///x/w.db", marks=pytest.mark.driver),
        ("workspaces_url", "file://relative/x.db"),
        pytest.param("activity_url", "memory://", marks=pytest.mark.driver),
        pytest.param("activity_url", "redis://h?nope=1", marks=pytest.mark.driver),
        ("workspaces_stop_on_exit", "perhaps"),
        ("workspaces_beyond_loopback", "1"),
        ("workspaces_deletion_budget", "0/1h"),
        ("request_ttl", "10minutes"),
        ("request_ttl", "0s"),
        ("request_ttl", "0"),
        ("request_ttl", "-1h"),
        ("request_ttl", "600"),
        ("request_deadline", "0s"),
        ("keeper_ttl", "never"),
        ("keeper_ttl", "-1s"),
        ("keeper_mode", "TTL"),
        ("keeper_mode", "followobject"),
        ("request_ttl_mode", "both"),
        ("restore_ownership", "nobody"),
        ("restore_executor", "local"),
        ("deletion_budget", "1000"),
        ("deletion_budget", "0/1h"),
        ("deletion_budget", "-1/1h"),
        ("deletion_budget", "1000/never"),
        ("deletion_budget", "1000/1ms"),
        ("request_deletion_budget", "1.5/1h"),
        ("keeper_deletion_budget", "1000 per hour"),
        ("history_deletion_budget", "0/1h"),
        ("retention_deletion_budget", "1000"),
        ("history_retention_limit", "-1"),
        ("history_retention_limit", "many"),
        ("history_keep_last_success", "-1"),
        ("retention_interval", "-1h"),
        ("hold_kinds", "ConfigMap"),
        ("hold_kinds", "v1/Secret"),
        ("retention_policies", "{}"),
        ("retention_policies", "[1]"),
        ("retention_policies", '[{"metadata": {"name": 5}}]'),
        ("webhooks", "{}"),
        ("webhooks", "[1]"),
        ("webhooks", '[{"name": "ops"}]'),
        ("webhooks", '[{"name": "ops", "url": "http://example.org", "secret_env": "X"}]'),
        ("expiry_warning", "0s"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused_at_the_start(key: str, value: str) -> None:
    with pytest.raises(SettingsError, match=key):
        load_settings({key: value})


WEBHOOK = "[[webhooks]]\nname = 'ops'\nurl = 'https://example.org/token-in-path'\nsecret_env = 'OPS_SECRET'\n"


def test_a_webhook_is_shown_by_its_name_alone() -> None:
    write(WEBHOOK, "named.toml")
    loaded = load_settings(config="named.toml")

    assert ("webhooks", "ops", "named.toml:1") in list(loaded.shown())


def test_a_webhook_that_is_wrong_is_told_without_its_url() -> None:
    write(WEBHOOK + "colour = 'red'\n", "named.toml")
    with pytest.raises(SettingsError) as raised:
        load_settings(config="named.toml")

    assert "named.toml:1: webhooks: of ops: Object contains unknown field `colour`" in str(raised.value)
    assert "token-in-path" not in str(raised.value)


def test_the_working_directory_does_not_decide_where_the_journal_is_sent() -> None:
    write(WEBHOOK)
    (problem,) = problems()

    assert problem.startswith(
        "lapse.toml:1: webhooks: not taken from the working directory, as it sends the journal elsewhere"
    )


def test_variables_that_programs_of_workspaces_get_are_no_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVER", "TOKEN", "WORKSPACE", "WORKSPACE_TOKEN", "RUN"):
        monkeypatch.setenv(f"LAPSE_{name}", "x")
    monkeypatch.setenv("LAPSE_SERVR", "x")

    assert [one for one in load_settings().warnings if "environment variable" in one] == [
        "the environment variable LAPSE_SERVR is not a setting"
    ]
