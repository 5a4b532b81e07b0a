from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.address import Address, AddressError
from lapse.domains import REGISTRY

GOOD = [
    ("vcr/default/nightly", Address("vcr", "default", "nightly")),
    ("vrr/default/restore-1", Address("vrr", "default", "restore-1")),
    ("mcr/team-a/m", Address("mcr", "team-a", "m")),
    ("history/team-a/run.7", Address("history", "team-a", "run.7")),
    ("keeper/vcr-default-nightly", Address("keeper", None, "vcr-default-nightly")),
    ("workspace/alice", Address("workspace", None, "alice")),
    ("key/7/alpha:ABC123", Address("key", "7", "alpha:ABC123")),
    ("key/0/x", Address("key", "0", "x")),
    ("key/4294967295/x", Address("key", "4294967295", "x")),
    ("Pod/default/web-0", Address("Pod", "default", "web-0")),
    ("Deployment.apps/default/web", Address("Deployment.apps", "default", "web")),
    ("VolumeSnapshot.snapshot.storage.k8s.io/ns/s", Address("VolumeSnapshot.snapshot.storage.k8s.io", "ns", "s")),
    ("Node/worker-1", Address("Node", None, "worker-1")),
    ("key/7/a%2Fb", Address("key", "7", "a/b")),
    ("key/7/%00", Address("key", "7", "\0")),
    ("key/7/caf%C3%A9", Address("key", "7", "café")),
    ("key/7/%F0%9F%94%91", Address("key", "7", "🔑")),
    ("key/7/100%25", Address("key", "7", "100%")),
    ("key/7/%2E", Address("key", "7", ".")),
    ("key/7/%2E%2E", Address("key", "7", "..")),
    ("key/7/...", Address("key", "7", "...")),
    ("key/7/a%20b", Address("key", "7", "a b")),
    ("key/7/-_.~:@+=,", Address("key", "7", "-_.~:@+=,")),
]


@pytest.mark.parametrize(("text", "address"), GOOD)
def test_an_address_is_read_and_printed_in_the_same_form(text: str, address: Address) -> None:
    assert REGISTRY.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("key/7/%41%62c", "key/7/Abc"),
        ("key/7/caf%c3%a9", "key/7/caf%C3%A9"),
        ("key/7/café", "key/7/caf%C3%A9"),
        ("key/7/a b", "key/7/a%20b"),
        ("key/7/..", "key/7/%2E%2E"),
        ("key/7/a?b#c", "key/7/a%3Fb%23c"),
    ],
)
def test_other_encodings_are_read_and_printed_canonically(text: str, canonical: str) -> None:
    assert str(REGISTRY.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is not a kind"),
        ("nightly", "'nightly' is not a kind"),
        ("vcr", "vcr takes NAMESPACE/NAME"),
        ("vcr/default", "vcr takes NAMESPACE/NAME"),
        ("vcr/default/a/b", "vcr takes NAMESPACE/NAME"),
        ("vcr//a", "a part is empty"),
        ("vcr/default/", "a part is empty"),
        ("/default/a", "'' is not a kind"),
        ("keeper/default/a", "keeper takes one NAME"),
        ("workspace", "workspace takes one NAME"),
        ("key/7", "key takes APP/NAME"),
        ("key/x/a", "the application id must be a whole number from 0 to 4294967295"),
        ("key/-1/a", "the application id must be a whole number"),
        ("key/+7/a", "the application id must be a whole number"),
        ("key/07/a", "the application id must be a whole number"),
        ("key/7.0/a", "the application id must be a whole number"),
        ("key/٧/a", "the application id must be a whole number"),
        ("key/²/a", "the application id must be a whole number"),
        ("key/4294967296/a", "the application id must be a whole number"),
        ("key/" + "9" * 5000 + "/a", "the application id must be a whole number"),
        (
            "pod/default/a",
            "'pod' is not a kind (known: checkpoint, csched, history, keeper, key, mcr, snapshot, vcr, volume, vrr, ",
        ),
        ("Pod", "a Kubernetes kind takes NAMESPACE/NAME"),
        ("Pod/a/b/c", "a Kubernetes kind takes NAMESPACE/NAME"),
        ("Pod./a/b", "'Pod.' is not a kind"),
        ("Pod.Apps/a/b", "'Pod.Apps' is not a kind"),
        ("Pod.apps./a/b", "'Pod.apps.' is not a kind"),
        ("key/7/a%", "% must be followed by two hexadecimal digits"),
        ("key/7/a%2", "% must be followed by two hexadecimal digits"),
        ("key/7/a%zz", "% must be followed by two hexadecimal digits"),
        ("key/7/%FF", "it is not valid UTF-8"),
        ("key/7/%ED%A0%80", "it is not valid UTF-8"),
        ("key/7/\ud800", "it is not valid UTF-8"),
    ],
)
def test_what_is_no_address_is_refused_with_what_was_wrong_and_what_was_expected(text: str, problem: str) -> None:
    with pytest.raises(AddressError) as caught:
        REGISTRY.parse(text)

    assert problem in str(caught.value)
    assert "Expected KIND/NAMESPACE/NAME as in vcr/default/nightly, key/APP/NAME" in str(caught.value)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
addresses = st.one_of(
    st.builds(Address, st.sampled_from(["vcr", "vrr", "mcr", "history"]), texts, texts),
    st.builds(Address, st.just("key"), st.integers(0, 2**32 - 1).map(str), texts),
    st.builds(Address, st.sampled_from(["keeper", "workspace"]), st.none(), texts),
    st.builds(Address, st.sampled_from(["Pod", "Deployment.apps"]), st.none() | texts, texts),
)


@given(addresses)
def test_any_address_reads_back_from_its_printed_form(address: Address) -> None:
    assert REGISTRY.parse(str(address)) == address


@given(addresses)
def test_a_printed_address_is_one_ascii_word_that_survives_in_a_url_path(address: Address) -> None:
    printed = str(address)

    assert printed.isascii()
    assert printed.isprintable()
    assert not set(printed) & set(" ?#\"'<>\\^`{|}[]")
    assert not {".", ".."} & set(printed.split("/"))


@given(st.text())
def test_any_text_is_an_address_or_an_address_error(text: str) -> None:
    try:
        address = REGISTRY.parse(text)
    except AddressError:
        return
    assert REGISTRY.parse(str(address)) == address
