"""Webhooks: what the settings may say, how deliveries are signed, and whom they go to."""

from __future__ import annotations

import base64
import hmac
import ssl
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lapse.core.clock import VirtualClock
from lapse.engine.journal.events import NAMES, event_id, event_of, item_of
from lapse.engine.journal.port import Outcome, Row
from lapse.engine.journal.webhook import (
    DeliveryError,
    Receiver,
    Webhook,
    WebhookSecretError,
    read_webhooks,
    signature,
)
from lapse.engine.view import to_json
from tests.servers.certificate import make_certificate
from tests.unit.engine.receivers import SECRET, Hook, entry, listening

if TYPE_CHECKING:
    from pathlib import Path

GOOD: dict[str, Any] = {"name": "ops", "url": "https://example.org/hooks", "secret_env": "OPS_SECRET"}


def row(name: str = "a", **other: Any) -> Row:  # noqa: ANN401 - fields
    written = entry(name, **other)
    return Row(id=7, **{field: getattr(written, field) for field in written.__struct_fields__})


# --- what the settings may say ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "http://127.0.0.1:9000/x"},
        {"url": "http://[::1]/x"},
        {"url": "http://localhost"},
        {"url": "https://10.0.0.5:8443/x?y=z"},
        {"url": "http://10.0.0.5/x", "allow_http": True},
        {"secret_env": "", "secret_file": "/run/secrets/ops"},
        {"events": ["ended", "expiring", "audit"], "domains": ["requests"]},
        {"events": list(NAMES)},
        {"give_up_after": "never"},
    ],
)
def test_a_webhook_may_say_this(changes: dict[str, Any]) -> None:
    assert Webhook.read(GOOD | changes).name == "ops"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "Ops"}, "expected a name in every webhook"),
        ({"name": None}, "expected a name in every webhook"),
        ({"url": 7}, "Expected `str`, got `int` - at `$.url`"),
        ({"url": "http://example.org/x"}, "expected https:// beyond this machine"),
        ({"url": "http://127.0.0.1.example.org/x"}, "expected https:// beyond this machine"),
        ({"url": "http://localhost.example.org/x"}, "expected https:// beyond this machine"),
        ({"url": "https://ada:pw@example.org/x"}, "without a user and a fragment"),
        ({"url": "https://example.org/x#y"}, "without a user and a fragment"),
        ({"url": "https://example.org/a b"}, "expected a url such as"),
        ({"url": "https://example.org/\r\nX: y"}, "expected a url such as"),
        ({"url": "https://example.org:99999/"}, "expected a url such as"),
        ({"url": "ftp://example.org/"}, "expected a url such as"),
        ({"url": "https:///path"}, "expected a url such as"),
        ({"secret_env": ""}, "expected secret_file"),
        ({"secret_file": "/run/secret"}, "expected secret_file"),
        ({"secret_env": "NOT A NAME"}, "expected the name of an environment variable"),
        ({"secret_env": "", "secret_file": "secret"}, "expected absolute paths"),
        ({"ca_file": "ca.pem"}, "expected absolute paths"),
        ({"events": ["endet"]}, "'endet' is no event"),
        ({"events": ["intent"]}, "'intent' is no event"),
        ({"give_up_after": "0s"}, "expected a duration above zero"),
        ({"give_up_after": "soon"}, "is not a duration"),
        ({"secret": "abc"}, "unknown field `secret`"),
    ],
)
def test_a_webhook_that_cannot_be_used_is_refused_with_what_was_expected(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=r".+") as raised:
        Webhook.read(GOOD | changes)
    assert problem in str(raised.value)
    assert "example.org" not in str(raised.value)


def test_two_webhooks_have_two_names() -> None:
    with pytest.raises(ValueError, match="a name of its own"):
        read_webhooks([GOOD, GOOD])


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_every_secret_that_is_active_signs(tmp_path: Path) -> None:
    keys = [base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2)]
    file = tmp_path / "secret"
    file.write_text(f"whsec_{keys[0]}\n{keys[1]}\n")
    webhook = Webhook.read(GOOD | {"secret_env": "", "secret_file": str(file)})

    assert webhook.secrets() == [b"\1" * 32, b"\2" * 32]
    signed = signature(webhook.secrets(), event="e", timestamp=5, body=b"{}").split()
    assert signed == [
        "v1," + base64.b64encode(hmac.digest(bytes([number]) * 32, b"e.5.{}", "sha256")).decode() for number in (1, 2)
    ]


def test_a_signature_is_that_of_the_specification() -> None:
    """The example of https://github.com/standard-webhooks/standard-webhooks and its libraries."""
    secrets = Webhook.read(GOOD).secrets({"OPS_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})
    signed = signature(
        secrets, event="msg_p5jXN8AQM9LWM0D4loKWxJek", timestamp=1614265330, body=b'{"test": 2432232314}'
    )
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "the file cannot be read (No such file or directory)"),
        ("", "the file is empty"),
        ("short", "expected 24 to 64 bytes in base64"),
        (f"{SECRET} ÿ", "the file is no text"),
        ("not base64 at all! but long enough, really", "expected 24 to 64 bytes in base64"),
        (base64.b64encode(b"x" * 65).decode(), "expected 24 to 64 bytes in base64"),
    ],
)
def test_a_secret_that_cannot_be_used_is_told_and_never_shown(tmp_path: Path, text: str | None, problem: str) -> None:
    file = tmp_path / "secret"
    if text is not None:
        file.write_text(text)
    with pytest.raises(WebhookSecretError) as raised:
        Webhook.read(GOOD | {"secret_env": "", "secret_file": str(file)}).secrets()
    assert problem in str(raised.value)
    assert not text or text not in str(raised.value)


def test_a_secret_that_others_may_write_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(0o666)
    with pytest.raises(WebhookSecretError, match="can be written by other users"):
        Webhook.read(GOOD | {"secret_env": "", "secret_file": str(file)}).secrets()


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(WebhookSecretError, match="OPS_SECRET is not set"):
        Webhook.read(GOOD).secrets({})


# --- events -----------------------------------------------------------------------------------------------------------


def test_the_id_of_an_event_follows_from_what_its_row_says_and_not_from_where_it_is() -> None:
    one = row("a", details={"b": [1, 2.5, None], "a": "ü"})
    moved = Row(**{**{name: getattr(one, name) for name in one.__struct_fields__}, "id": 99, "transaction": 5})
    assert event_id(one) == event_id(moved)
    assert event_id(one) != event_id(row("a", details={"b": [1, 2.5, None], "a": "u"}))
    assert event_id(row(number=1)) != event_id(row(number=2))


def test_a_row_about_a_whole_domain_has_no_subject() -> None:
    written = msgspec.structs.replace(row(), address="", uid="", outcome=Outcome.FROZEN)
    event = to_json(event_of(written, record="r1"))
    assert (event["type"], "subject" in event, item_of(written)) == ("dev.lapse.frozen", False, "requests")


def test_an_order_is_kept_for_each_thing_by_its_uid() -> None:
    assert item_of(row("a", domain="history")) == item_of(row("a", domain="retention"))


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.mark.process  # of openssl
async def test_a_certificate_that_is_not_trusted_is_no_receiver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPS_SECRET", SECRET)
    made = make_certificate(tmp_path, print)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate_file, made.key_file)
    async with listening(Hook(), context=context) as hook:
        url = hook.url.replace("http://127.0.0.1", "https://localhost")
        clock = VirtualClock()
        event, secrets = event_of(row(), record="r1"), Webhook.read(GOOD).secrets()
        strange = Receiver(Webhook.read(GOOD | {"url": url}), clock=clock, user_agent="lapse")
        with pytest.raises(DeliveryError, match="certificate is not trusted"):
            await strange.deliver(event, secrets)
        known = Webhook.read(GOOD | {"url": url, "ca_file": str(made.ca_file)})
        receiver = Receiver(known, clock=clock, user_agent="lapse")
        await receiver.deliver(event, secrets)
        receiver.close()

    assert [one.headers["host"] for one in hook.taken] == [f"localhost:{hook.port}"]


def test_a_file_without_certificates_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPS_SECRET", SECRET)
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    with pytest.raises(DeliveryError, match="its ca_file cannot be used"):
        Receiver(Webhook.read(GOOD | {"ca_file": str(file)}), clock=VirtualClock(), user_agent="lapse")
