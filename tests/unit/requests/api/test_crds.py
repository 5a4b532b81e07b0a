from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from lapse.cli.commands.crds import all_definitions
from lapse.kube.crd.definition import to_yaml, write
from lapse.requests.api.kinds import OUR_KINDS, definitions

if TYPE_CHECKING:
    from lapse.kube.resources import Json, Kind

FOLDER = Path(__file__).parents[4] / "deploy" / "crds"


def test_the_definitions_in_the_repository_are_what_the_code_says(tmp_path: Path) -> None:
    write(tmp_path, all_definitions())
    written = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert written == {file.name: file.read_text() for file in FOLDER.iterdir()}, (
        "run python -m lapse.cli.commands.crds deploy/crds"
    )


@pytest.mark.parametrize("document", all_definitions(), ids=lambda document: document["metadata"]["name"])
def test_what_is_written_reads_as_what_was_meant(document: Json) -> None:
    assert yaml.safe_load(to_yaml(document)) == document


@pytest.mark.parametrize(
    "value",
    [
        "true",
        "No",
        "null",
        "",
        "a: b",
        "- a",
        "# a",
        "1",
        "1.5",
        "~",
        "a\nb",
        'a "b" \\c',
        "µ",
        {},
        [],
        7,
        True,
        ["a", 1],
    ],
)
def test_texts_that_mean_something_to_yaml_stay_texts(value: object) -> None:
    document = {"one": value, "list": [{"a": value, "b": {"c": value}}]}
    assert yaml.safe_load(to_yaml(document)) == document


@pytest.mark.parametrize(
    ("plural", "names"),
    [
        ("volumecapturerequests", ["Mode", "Target", "Ready", "Reason", "Expires", "Age"]),
        ("volumerestorerequests", ["Source", "Claim", "Ready", "Reason", "Progress", "Expires", "Age"]),
        ("manifestcapturerequests", ["Checkpoint", "Ready", "Reason", "Expires", "Age"]),
        ("objectkeepers", ["Mode", "Follows", "TTL", "Phase", "Expires", "Age"]),
    ],
)
def test_a_list_shows_what_a_person_wants_to_know_first(plural: str, names: list[str]) -> None:
    version = yaml.safe_load((FOLDER / f"{plural}.yaml").read_text())["spec"]["versions"][0]
    assert [column["name"] for column in version["additionalPrinterColumns"]] == names


@pytest.mark.parametrize(("kind", "document"), list(zip(OUR_KINDS, definitions(), strict=True)))
def test_status_has_a_write_path_of_its_own_wherever_there_is_one(kind: Kind[Any], document: Json) -> None:
    version = document["spec"]["versions"][0]
    has_status = "status" in version["schema"]["openAPIV3Schema"]["properties"]
    assert kind.status == has_status == ("subresources" in version)
