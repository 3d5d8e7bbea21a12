"""What a database is told after it was restored from a backup.

The numbers of the events that were lost are given to other events otherwise, and a subscriber that has seen the lost
ones would pass over those without a word. So numbers go on far behind any that were ever handed out, and a reader
with an older one is told of a gap.
"""

from __future__ import annotations

import contextlib
import sqlite3

from flowfabric.model.errors import Transport, TransportKind, Validation, ValidationKind
from flowfabric.stores import migrate
from flowfabric.stores.kinds import kind_of, needed
from flowfabric.stores.postgres.address import bad_address
from flowfabric.stores.postgres.errors import cannot_open
from flowfabric.stores.sql.events import HORIZON_RISES
from flowfabric.stores.sql.schema import OUTBOXES
from flowfabric.stores.sqlite.location import locate

#: How far numbers go on behind those that the backup knows: more events than any backup may lack.
STEP = 2**40


async def go_on_behind(url: str) -> None:
    """Let the events of a restored database have new numbers. Nobody may use it meanwhile."""
    match kind_of(url):
        case "sqlite":
            _sqlite(url)
        case "postgres":
            await _postgres(url)
        case "valkey":
            return  # it notices by itself that it has lost events
        case _:
            raise Validation(ValidationKind.INVALID_INPUT, "a store in memory is never restored")


def _sqlite(url: str) -> None:
    location = locate(url)
    try:
        address = f"{location.uri}{'&' if '?' in location.uri else '?'}mode=rw"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
            connection.isolation_level = None
            connection.execute("BEGIN EXCLUSIVE")
            migrate.refuse_pending("sqlite", migrate.binding("sqlite", connection.execute(migrate.APPLIED).fetchall()))
            for outbox in OUTBOXES.values():
                found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (outbox.name,)).fetchone()
                last = (0 if found is None else found[0]) + STEP
                if found is None:
                    connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (outbox.name, last))
                else:
                    connection.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = ?", (last, outbox.name))
                connection.execute(_RAISE.format("?", "?"), (outbox.name, last))
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise Transport("sqlite", TransportKind.OTHER, f"{location.identity}: {error}") from error


#: The horizon of an outbox; the times of deleted events stay as they are.
_RAISE = "INSERT INTO ff_event_horizon (outbox, trimmed_through, trimmed_before_ms) VALUES ({}, {}, 0) " + HORIZON_RISES


async def _postgres(url: str) -> None:
    with needed("postgres"):
        import asyncpg

    try:
        connection = await asyncpg.connect(url.replace("postgres://", "postgresql://", 1), timeout=30)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        raise cannot_open(error) from error
    except ValueError:
        raise bad_address() from None
    try:
        async with connection.transaction():
            migrate.refuse_pending("postgres", migrate.binding("postgres", await connection.fetch(migrate.APPLIED)))
            for outbox in OUTBOXES.values():
                await connection.execute(f"LOCK TABLE {outbox.name} IN EXCLUSIVE MODE")
                sequence = f"pg_get_serial_sequence('{outbox.name}', 'event_id')"
                last = await connection.fetchval(f"SELECT setval({sequence}, nextval({sequence}) + {STEP})")
                await connection.execute(_RAISE.format("$1", "$2"), outbox.name, last)
    except asyncpg.PostgresError as error:
        raise cannot_open(error) from error
    finally:
        await connection.close()
