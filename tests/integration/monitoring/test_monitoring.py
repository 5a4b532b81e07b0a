"""The Grafana dashboard and the alert rules: checked by Prometheus' own tool, and against a real process's metrics."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import yaml

from tests.integration.monitoring.promql import Exposition, Question, Selector, question
from tests.servers.lapse_server import LapseServer, until
from tests.servers.programs import find

if TYPE_CHECKING:
    from collections.abc import Iterator

MONITORING = Path(__file__).parents[3] / "deploy" / "monitoring"
ALERTS = MONITORING / "alerts.yaml"
TESTS = MONITORING / "alerts_test.yaml"
HOW_TO = MONITORING.parents[1] / "docs" / "how-to" / "watch-lapse.md"
GRAFANA = {"$__rate_interval": "5m", "$job": "lapse"}
"""What Grafana puts in place of its variables."""
WIDTH = 24
promtool = pytest.mark.server("promtool", private=True)


@cache
def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text("utf-8"))
    return document


def panels() -> list[dict[str, Any]]:
    return [one for one in dashboard()["panels"] if one["type"] != "row"]


def rules() -> dict[str, dict[str, Any]]:
    document = yaml.safe_load(ALERTS.read_text("utf-8"))
    return {rule["alert"]: rule for group in document["groups"] for rule in group["rules"]}


def in_panels() -> Iterator[tuple[str, str]]:
    """Give each panel's title with each of its expressions."""
    return ((panel["title"], target["expr"]) for panel in panels() for target in panel["targets"])


def expressions() -> list[tuple[str, str]]:
    return [*in_panels(), *((name, rule["expr"]) for name, rule in rules().items())]


# --- against a real process -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    webhooks = [{"name": "ops", "url": "http://127.0.0.1:1/", "secret_env": "LAPSE_TEST_SECRET"}]
    secret = base64.b64encode(bytes(32)).decode()
    environment = {"LAPSE_WEBHOOKS": json.dumps(webhooks), "LAPSE_TEST_SECRET": secret}
    server = LapseServer.start(tmp_path_factory.mktemp("monitored"), settings=environment)
    until(lambda: server.metric("lapse_leader") == 1)
    yield httpx2.get(f"{server.probes}/metrics", trust_env=False).text
    server.stop()


@pytest.fixture(scope="module")
def exposition(shown: str) -> Exposition:
    return Exposition.read(shown)


@pytest.mark.process
@pytest.mark.parametrize(("name", "expression"), expressions())
def test_whatever_is_asked_for_is_there_with_exactly_these_labels(
    exposition: Exposition, name: str, expression: str
) -> None:
    assert exposition.problems(question(expression)) == [], name


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("lapse_frosen == 1", "there is no lapse_frosen"),
        ('lapse_frozen{reason="x"}', "lapse_frozen has no label reason"),
        ('lapse_frozen{domain="keyrings"}', "no domain of lapse_frozen is keyrings"),
        ('lapse_frozen{domain=~"requests|keyrings"}', "no domain of lapse_frozen is requests|keyrings"),
        ("max by (job, reason) (lapse_frozen)", "no metric of the expression has the label reason"),
    ],
)
def test_a_mistake_in_an_expression_would_be_found(expression: str, problem: str) -> None:
    shown = Exposition.read('lapse_frozen{domain="requests"} 0.0')

    assert shown.problems(question(expression)) == [problem]


def test_an_expression_is_read_as_it_is() -> None:
    text = 'sum by (job, le) (rate(lapse_a_bucket{job=~"$job", domain!="keys"}[5m])) / on (instance) process_open_fds'

    matchers = (("job", "=~", "$job"), ("domain", "!=", "keys"))
    expected = (Selector("lapse_a_bucket", matchers), Selector("process_open_fds"))
    assert question(text) == Question(expected, frozenset({"job", "le", "instance"}))


# --- the dashboard ----------------------------------------------------------------------------------------------------


def test_every_panel_is_of_the_chosen_data_source_and_jobs_and_says_what_it_shows() -> None:
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert [one["name"] for one in dashboard()["templating"]["list"]] == ["datasource", "job"]
    for panel in panels():
        assert panel["datasource"] == source
        assert panel["description"].endswith(".")
        assert {target["datasource"] == source for target in panel["targets"]} == {True}
    for title, expression in in_panels():
        # What a metric is only compared with, by its target, is chosen by the other one.
        chosen = [one for one in question(expression).selectors if ("job", "=~", "$job") in one.matchers]
        assert chosen, title


def test_panels_have_numbers_of_their_own_and_cover_none_other() -> None:
    every = dashboard()["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    taken: set[tuple[int, int]] = set()
    for panel in every:
        x, y, w, h = (panel["gridPos"][name] for name in "xywh")
        cells = {(column, line) for column in range(x, x + w) for line in range(y, y + h)}
        assert x + w <= WIDTH
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_metric_of_the_reference_is_on_the_dashboard_or_in_a_rule() -> None:
    page = (MONITORING.parents[1] / "docs" / "reference" / "metrics.md").read_text("utf-8")
    told = set(re.findall(r"^\| `((?:lapse|process)_\w+)`", page, re.MULTILINE))
    asked = {
        re.sub(r"_bucket$", "", one.metric) for _, expression in expressions() for one in question(expression).selectors
    }

    assert told - asked == {"process_virtual_memory_bytes"}


# --- the rules --------------------------------------------------------------------------------------------------------


def run(*arguments: str | Path, cwd: Path = MONITORING, stdin: str = "") -> str:
    command = [find("promtool").path, *arguments]
    done = subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@promtool
def test_the_rules_are_valid() -> None:
    assert f"SUCCESS: {len(rules())} rules found" in run("check", "rules", "--lint=all", "--lint-fatal", ALERTS)


@promtool
def test_each_alert_fires_when_it_should_and_none_when_all_is_well() -> None:
    assert "SUCCESS" in run("test", "rules", TESTS)


@promtool
@pytest.mark.parametrize("name", rules())
def test_the_tests_of_the_rules_notice_each_alert_that_does_not_fire(name: str, tmp_path: Path) -> None:
    document = yaml.safe_load(ALERTS.read_text("utf-8"))
    for rule in document["groups"][0]["rules"]:
        if rule["alert"] == name:
            rule["expr"] = "vector(1) == 0"
    (tmp_path / ALERTS.name).write_text(yaml.safe_dump(document))
    (tmp_path / TESTS.name).write_bytes(TESTS.read_bytes())

    with pytest.raises(AssertionError, match=name):
        run("test", "rules", TESTS.name, cwd=tmp_path)


@promtool
def test_the_scrape_configuration_on_the_page_is_valid(tmp_path: Path) -> None:
    page = HOW_TO.read_text("utf-8")
    (tmp_path / "prometheus.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    (tmp_path / ALERTS.name).write_bytes(ALERTS.read_bytes())

    assert "SUCCESS" in run("check", "config", "prometheus.yaml", cwd=tmp_path)


@promtool
@pytest.mark.process
def test_prometheus_finds_no_fault_with_what_a_process_shows(shown: str) -> None:
    assert run("check", "metrics", stdin=shown) == ""


@promtool
def test_every_expression_of_the_dashboard_is_valid(tmp_path: Path) -> None:
    found = [expression for _, expression in in_panels()]
    for variable, value in GRAFANA.items():
        found = [expression.replace(variable, value) for expression in found]
    recorded = [{"record": f"panel:{number}", "expr": one} for number, one in enumerate(found)]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))

    assert f"SUCCESS: {len(found)} rules found" in run("check", "rules", "--lint=none", file)


def test_every_alert_says_how_bad_it_is_what_it_means_and_what_to_do() -> None:
    for name, rule in rules().items():
        assert name.startswith("Lapse")
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}, name
        assert not rule["annotations"]["summary"].endswith(".")


def test_every_alert_is_on_the_page_that_tells_how_to_use_them() -> None:
    rows = re.findall(r"^\| `(Lapse\w+)` \| (\w+) \|", HOW_TO.read_text("utf-8"), re.MULTILINE)

    assert dict(rows) == {name: rule["labels"]["severity"] for name, rule in rules().items()}
