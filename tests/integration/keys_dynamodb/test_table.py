"""The table is made on request only, and one that does not fit is a clear error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import lapse
from lapse.keys.errors import BackendMisfitError
from tests.integration.keys_dynamodb.conftest import Raw, init, new_table, url_of

if TYPE_CHECKING:
    from tests.servers import Server

B_KEYS = [{"AttributeName": "pk", "AttributeType": "B"}, {"AttributeName": "sk", "AttributeType": "B"}]
SCHEMA = [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}]


def test_a_missing_table_is_an_error_that_names_the_command(shared_dynamodb: Server, raw: Raw) -> None:
    table = new_table()

    with pytest.raises(BackendMisfitError, match=rf"no table {table} in eu-west-1; run: lapse keys init URL"):
        lapse.open_keys(url_of(shared_dynamodb.url, table))

    assert table not in raw.call("list_tables")["TableNames"]


async def test_a_missing_table_is_an_error_when_awaited(shared_dynamodb: Server) -> None:
    with pytest.raises(BackendMisfitError, match="lapse keys init URL"):
        await lapse.open_keys_async(url_of(shared_dynamodb.url, new_table()))


def test_init_makes_an_on_demand_table_with_the_native_ttl_on(shared_dynamodb: Server, raw: Raw) -> None:
    table = new_table()

    said = init(url_of(shared_dynamodb.url, table, "buckets=8"))

    assert said == (
        f"the table {table} in eu-west-1 is made, with on-demand billing; expired items are removed by its TTL "
        "attribute expires_s, and buckets=8 is recorded in it"
    )
    described = raw.call("describe_table", TableName=table)["Table"]
    assert described["KeySchema"] == SCHEMA
    assert sorted(described["AttributeDefinitions"], key=lambda entry: entry["AttributeName"]) == B_KEYS
    assert described["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    ttl = raw.call("describe_time_to_live", TableName=table)["TimeToLiveDescription"]
    assert ttl == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expires_s"}


def test_init_may_be_repeated_and_loses_nothing(url: str) -> None:
    with lapse.open_keys(url) as keys:
        keys.app(7).put("k", "v", 600)

    said = init(url)

    assert "is there; expired items" in said
    with lapse.open_keys(url) as keys:
        assert keys.app(7).ttl_get("k") == "v"


def test_another_number_of_buckets_is_refused_when_opened_and_when_made(shared_dynamodb: Server) -> None:
    table = new_table()
    init(url_of(shared_dynamodb.url, table, "buckets=8"))
    other = url_of(shared_dynamodb.url, table, "buckets=4")

    with pytest.raises(BackendMisfitError, match="made with buckets=8 and is opened with buckets=4"):
        lapse.open_keys(other)
    with pytest.raises(BackendMisfitError, match="made with buckets=8 and is opened with buckets=4"):
        init(other)


def test_init_completes_a_table_that_was_made_by_hand(shared_dynamodb: Server, raw: Raw) -> None:
    table = new_table()
    raw.call(
        "create_table",
        TableName=table,
        KeySchema=SCHEMA,
        AttributeDefinitions=B_KEYS,
        BillingMode="PROVISIONED",
        ProvisionedThroughput={"ReadCapacityUnits": 10, "WriteCapacityUnits": 10},
    )
    url = url_of(shared_dynamodb.url, table)

    with pytest.raises(BackendMisfitError, match="was not made for keys; run: lapse keys init URL"):
        lapse.open_keys(url)
    said = init(url)

    assert "is there" in said
    lapse.open_keys(url).close()


def test_a_table_with_other_keys_is_refused(shared_dynamodb: Server, raw: Raw) -> None:
    table = new_table()
    raw.call(
        "create_table",
        TableName=table,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    url = url_of(shared_dynamodb.url, table)

    with pytest.raises(BackendMisfitError, match="another key schema; expected a partition key pk and a sort key sk"):
        init(url)
    with pytest.raises(BackendMisfitError, match="does not take the requests of Lapse"):
        lapse.open_keys(url)


def test_a_table_whose_ttl_is_on_another_attribute_is_refused(shared_dynamodb: Server, raw: Raw) -> None:
    table = new_table()
    raw.call(
        "create_table",
        TableName=table,
        KeySchema=SCHEMA,
        AttributeDefinitions=B_KEYS,
        BillingMode="PAY_PER_REQUEST",
    )
    spec = {"AttributeName": "gone_at", "Enabled": True}
    raw.call("update_time_to_live", TableName=table, TimeToLiveSpecification=spec)

    with pytest.raises(BackendMisfitError, match="on the attribute gone_at; expected expires_s"):
        init(url_of(shared_dynamodb.url, table))
