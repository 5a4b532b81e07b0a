from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from lapse.domains import REGISTRY
from lapse.engine.safety import holds
from lapse.engine.safety.extensions import EXTENDED_UNTIL
from lapse.kube.crd.schema import schema_of
from lapse.kube.resources import Condition
from lapse.objects.holds.passed_on import MARK_NAMES
from lapse.objects.packing import checkpoints, chunks
from lapse.objects.packing.chunks import MAX_CHUNK_CHARACTERS
from lapse.objects.trash import rules
from lapse.requests import addresses as names
from lapse.requests import expiry as ttl
from lapse.requests.api import kinds as known
from lapse.requests.api.conditions import NOT_FINAL, ConditionReason, ScheduleReason
from lapse.requests.api.kinds import OUR_KINDS, REQUEST_KINDS
from lapse.requests.bridge.removal import BridgeReason
from lapse.requests.controllers.claims import bridge_name
from lapse.requests.controllers.detach import DetachReason
from lapse.requests.controllers.provisioning import FINAL, SOURCE_GOES, TRANSIENT
from lapse.requests.expiry import FinishedRequests
from lapse.requests.lifecycle import keepers
from lapse.requests.lifecycle.events import EventReason
from lapse.requests.lifecycle.keeper import KeeperReason
from lapse.requests.lifecycle.keepers import Keepers
from lapse.requests.lifecycle.policy import RequestPolicy, RestoreExecutor
from lapse.requests.local import places
from lapse.requests.schedules.retention import SupersededRuns
from lapse.settings import FOUNDING_NAMES
from tests.markdown import REFERENCE, code, sections, table, tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.kube.resources import Json, Kind

PAGE = REFERENCE / "requests.md"
TEXT = PAGE.read_text()


def leaves(schema: Json, at: str, *, required: bool) -> Iterator[tuple[str, bool]]:
    """Yield every field that holds a value, and whether it must be there once what it stands in is."""
    if at == "status.conditions":  # described once for all kinds
        yield at, required
    elif schema.get("properties"):
        needed = schema.get("required", ())
        for name, part in schema["properties"].items():
            yield from leaves(part, f"{at}.{name}" if at else name, required=name in needed)
    elif schema.get("items", {}).get("properties"):
        yield from leaves(schema["items"], f"{at}[]", required=required)
    else:
        yield at, required


def spelt_out(field: str) -> list[str]:
    """Replace ``{a,b}`` by each of its parts."""
    parts = [part.strip("{}").split(",") if part.startswith("{") else [part] for part in re.split(r"(\{.*?\})", field)]
    return ["".join(words) for words in product(*parts)]


def test_the_page_lists_exactly_the_reasons_of_events() -> None:
    told = {name for row in table(PAGE, "reason", "type", "on", "says") for name in code(row["reason"])}
    assert told == {*EventReason, ConditionReason.COMPLETED}


def test_the_page_lists_the_codes_by_which_provisioning_is_judged() -> None:
    told = set(code(TEXT[TEXT.index("**Events of provisioners are read.**") : TEXT.index("## Restores on a cluster")]))
    assert told >= FINAL | TRANSIENT
    assert told - FINAL - TRANSIENT == {"ProvisioningFailed", "RestoreFailed", SOURCE_GOES}


def test_the_page_lists_exactly_our_kinds() -> None:
    told = [
        (*(row[name].strip("`") for name in ("kind", "short", "apiVersion")), row["scope"])
        for row in table(PAGE, "kind", "short", "apiVersion", "scope", "is")
    ]

    assert told == [
        (kind.kind, kind.short, kind.api_version, "namespace" if kind.namespaced else "cluster") for kind in OUR_KINDS
    ]
    assert [kind.kind for kind in REQUEST_KINDS] == [kind for kind, *_ in told if kind.endswith("Request")]


@pytest.mark.parametrize("kind", OUR_KINDS, ids=lambda kind: kind.kind)
def test_a_section_lists_exactly_the_fields_of_its_kind(kind: Kind[Any]) -> None:
    rows, *_ = tables(sections(TEXT, 3)[kind.kind])
    told = [(field, row["required"]) for row in rows for field in spelt_out(row["field"].strip("`"))]

    fields = dict(leaves(schema_of(kind.type), "", required=False))
    assert sorted(told) == sorted((field, "yes" if required else "") for field, required in fields.items())


@pytest.mark.parametrize("kind", OUR_KINDS, ids=lambda kind: kind.kind)
def test_a_section_tells_every_value_that_a_field_may_have(kind: Kind[Any]) -> None:
    told = code(sections(TEXT, 3)[kind.kind])

    assert set(choices(schema_of(kind.type), "")) - set(told) == set()


def choices(schema: Json, at: str) -> Iterator[str]:
    if at != "conditions":
        yield from schema.get("enum", ())
        yield from choices(schema["items"], "") if "items" in schema else ()
        for name, part in schema.get("properties", {}).items():
            yield from choices(part, name)


def test_the_page_lists_exactly_the_reasons_and_which_are_final() -> None:
    told = {row["reason"].strip("`"): row["final"] for row in table(PAGE, "reason", "final", "when")}

    assert told == {reason: "no" if reason in NOT_FINAL else "yes" for reason in ConditionReason}


def test_the_page_lists_exactly_the_reasons_of_schedules() -> None:
    told = [row["reason of `Ready`"].strip("`") for row in table(PAGE, "reason of `Ready`", "status", "when")]

    assert told == [*ScheduleReason]


def test_the_page_names_the_fields_of_a_condition() -> None:
    (sentence,) = re.findall(r"It has the fields (.*?);", sections(TEXT, 2)["Conditions"], re.DOTALL)

    assert code(sentence) == list(schema_of_condition())


def schema_of_condition() -> list[str]:
    return [re.sub("_(.)", lambda found: found[1].upper(), name) for name in Condition.__struct_fields__]


def test_the_page_lists_exactly_the_annotations_and_labels() -> None:
    rows = table(PAGE, "annotation", "on", "means")
    told = [code(row["annotation"])[0] for row in rows]

    ours = [
        value for value in vars(known).values() if isinstance(value, str) and re.fullmatch(r"[a-z.]+/[a-z-]+", value)
    ]
    holding = [*MARK_NAMES, holds.HELD_DEPENDENTS, EXTENDED_UNTIL]
    back = [rules.BROUGHT_BACK, rules.MADE_FOR]
    assert sorted(told) == sorted([*ours, *holding, *back, places.DIRECTORY])
    labels = {code(row["annotation"])[0] for row in rows if "(a label)" in row["annotation"]}
    assert labels == {known.SCHEDULE, known.RESTORE}


def test_the_page_tells_every_executor_of_restores_that_can_be_chosen() -> None:
    told = [row["`restore_executor`"].strip("`") for row in tables(sections(TEXT, 2)["Restores on a cluster"])[0]]

    assert told == [*(one for one in RestoreExecutor if one is not RestoreExecutor.LOCAL)]
    assert f"`{KeeperReason.RESTORE_PENDING}`" in sections(TEXT, 3)["ObjectKeeper"]


def test_the_names_on_the_page_are_those_that_are_made() -> None:
    told = {row["of"]: row["name"] for row in table(PAGE, "of", "name")}

    assert code(told["a keeper"]) == [names.keeper_name(kind.short, "UID") for kind in REQUEST_KINDS]
    assert re.fullmatch(r"snapshot-UID-[0-9a-f]{12}", names.snapshot_name("UID", "claim"))
    assert "`snapshot-UID-HEX`" in told["a snapshot"]
    assert "12 hex" in told["a snapshot"]
    assert code(told["the VolumeSnapshot and the VolumeSnapshotContent of a restore"]) == [bridge_name("UID")]
    assert re.fullmatch(r"mcp-[0-9a-f]{16}", names.checkpoint_name("UID"))
    assert "16 hex" in told["a checkpoint"]
    assert code(told["a chunk"])[:2] == [checkpoints.chunk_name("mcp-HEX", index) for index in (0, 1)]


def test_every_address_on_the_page_is_one() -> None:
    for row in table(PAGE, "address", "of"):
        address = row["address"].strip("`")
        assert str(REGISTRY.parse(address)) == address


def test_the_defaults_on_the_page_are_those_of_the_policy() -> None:
    told = {row["setting"].strip("`"): row["default"].strip("`") for row in table(PAGE, "setting", "default", "means")}

    assert told == {name: str(getattr(RequestPolicy(), name.lower())) for name in FOUNDING_NAMES}


def test_the_page_tells_every_reason_for_which_something_is_ended() -> None:
    rows = table(PAGE, "domain", "address", "reason", "anchor")
    told = {(row["domain"].strip("`"), row["reason"].strip("`")) for row in rows}

    domains = (FinishedRequests, Keepers, SupersededRuns)
    swept = {(domain.name, reason) for domain in domains for reason in domain.reasons}
    assert told == swept | {(ttl.DOMAIN, reason) for reason in (*DetachReason, *BridgeReason)}
    assert keepers.DOMAIN in {domain for domain, _ in told}


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    assert f"at most {MAX_CHUNK_CHARACTERS} characters" in TEXT
    assert f"at most {chunks.MAX_GZIP_BYTES} bytes of gzip" in TEXT
