"""The pure part: durations, clocks, verdicts, jitter, identities and errors.

Nothing here touches a disk, a socket or a database, so everything here can be tested as a table. The one exception is
`core.clock`, which owns the system clocks and the only ``asyncio.sleep`` of the product, so that both can be replaced
in tests.
"""
