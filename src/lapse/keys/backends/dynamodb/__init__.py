"""Keys in a DynamoDB table: ``dynamodb://region/table``, ``&endpoint=http://host:port`` for a local server.

Guarantees. Each operation is one request, and each write one conditional request that takes an expired item for absent,
so of any number of clients exactly one wins. Reads are consistent. The stored expiry decides, in the condition and on
read; when the server removes an item matters to nobody. A write is never repeated when it may have been applied.

Whose clock: this machine's. Its distance from the server's is watched (`server_clock`), and beyond ``max_skew`` the
store refuses to work instead of misjudging. The time of a request is that of its sending.

Not guaranteed: `insert_many` and `get_many` are not atomic together; two machines may disagree about the instant of
expiry by as much as their clocks differ, which is at most twice ``max_skew`` once both have had a few answers; the
physical removal of an expired item, which AWS does within hours to days. Global tables: replicas in other regions are
not consistent with each other unless the table was made for that, so let all clients of a table use one region.
"""

from __future__ import annotations

from lapse.keys.backends.dynamodb.backend import OPTIONS, DynamoDBBackend, init_store, open_backend

__all__ = ["OPTIONS", "DynamoDBBackend", "init_store", "open_backend"]
