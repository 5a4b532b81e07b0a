from __future__ import annotations

import pytest

from lapse.domains import REGISTRY
from lapse.kube.resources import ObjectKey
from lapse.requests.addresses import (
    ARTIFACT_KINDS,
    Located,
    PlaceError,
    UnknownNameError,
    find_kinds,
    find_target_kind,
    locate,
    short_name,
)
from lapse.requests.api.kinds import MANIFEST_CHECKPOINT, OBJECT_KEEPER, REQUEST_KINDS, VOLUME_CAPTURE_REQUEST
from lapse.requests.api.upstream import ALL_KINDS, CONFIG_MAP, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT


@pytest.mark.parametrize(
    ("text", "place", "canonical"),
    [
        ("vcr/default/nightly", Located(VOLUME_CAPTURE_REQUEST, ObjectKey("default", "nightly")), None),
        ("keeper/ret-vcr-1", Located(OBJECT_KEEPER, ObjectKey(None, "ret-vcr-1")), None),
        ("pvc/default/data", Located(PERSISTENT_VOLUME_CLAIM, ObjectKey("default", "data")),
         "PersistentVolumeClaim/default/data"),
        ("snapshot/snapshot-1", Located(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, "snapshot-1")), None),
        ("checkpoint/mcp-1", Located(MANIFEST_CHECKPOINT, ObjectKey(None, "mcp-1")), None),
    ],
)  # fmt: skip
def test_an_address_has_a_short_form_for_people_and_one_for_programs(
    text: str, place: Located, canonical: str | None
) -> None:
    assert locate(text) == place
    assert str(place) == text
    assert str(place.address) == (canonical or text)
    assert locate(str(place.address)) == place


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("vsc/x", "snapshot/x"),
        ("VolumeSnapshotContent.snapshot.storage.k8s.io/x", "snapshot/x"),
        ("mcp/x", "checkpoint/x"),
        ("ManifestCheckpoint.state-snapshotter.deckhouse.io/x", "checkpoint/x"),
        ("pv/x", "volume/x"),
        ("PersistentVolume/x", "volume/x"),
        ("ObjectKeeper.deckhouse.io/x", "keeper/x"),
        ("VolumeCaptureRequest.storage.deckhouse.io/a/x", "vcr/a/x"),
    ],
)
def test_other_words_for_a_kind_mean_the_same_and_the_short_one_is_printed(text: str, canonical: str) -> None:
    assert str(locate(text)) == str(locate(text).address) == canonical
    assert str(REGISTRY.parse(text)) == canonical


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.kind)
def test_every_kind_can_be_addressed_in_both_forms(kind: object) -> None:
    known = next(one for one in ALL_KINDS if one is kind)
    place = Located(known, ObjectKey("default" if known.namespaced else None, "x.y"))

    assert locate(str(place)) == locate(str(place.address)) == place


@pytest.mark.parametrize("text", ["", "vcr", "vcr/x", "vcr/a/b/c", "VCR/a/b", "keeper/a/b", "frob/a/b", "vcr/a/%"])
def test_what_is_no_address_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(PlaceError, match="Expected KIND/NAMESPACE/NAME as in vcr/default/nightly") as caught:
        locate(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "word", ["vcr", "vcrs", "VolumeCaptureRequest", "volumecapturerequests", "volumecapturerequest", "VCR"]
)
def test_a_kind_may_be_named_in_every_usual_way(word: str) -> None:
    assert find_kinds([word]) == (VOLUME_CAPTURE_REQUEST,)


def test_words_for_several_kinds_name_each_kind_once() -> None:
    assert find_kinds(["keepers", "requests", "vcr", "artifacts"]) == (OBJECT_KEEPER, *REQUEST_KINDS, *ARTIFACT_KINDS)
    assert find_kinds([]) == ()


@pytest.mark.parametrize("text", ["ConfigMap", "cm", "configmaps", "v1:ConfigMap", "v1:cm"])
def test_a_target_may_say_its_version(text: str) -> None:
    assert find_target_kind(text) is CONFIG_MAP


@pytest.mark.parametrize("text", ["", ":", "Secret", "v2:ConfigMap", "apps/v1:ConfigMap", ":ConfigMap"])
def test_an_unknown_target_kind_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(UnknownNameError, match=r"ConfigMap \(cm\)"):
        find_target_kind(text)


def test_short_names_are_distinct() -> None:
    assert len({short_name(kind) for kind in ALL_KINDS}) == len(ALL_KINDS)
