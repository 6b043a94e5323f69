"""The tables of a PostgreSQL store, and telling a store from something else (K-LOG-5)."""

from __future__ import annotations

from psycopg import sql

from kernel.adapters.postgres_pool import SERVER_VERSION_MIN, Connection, Place, connect, refusals
from kernel.errors import NotAStore, StoreUnavailable, StoreVersion

APPLICATION = "loom"
SCHEMA_VERSION = 2
"""What `loom_store` says; a store with a higher version is refused."""

_ADVISORY_LOCK = 0x4C4F4F4D
"""Held while a store is made or upgraded, so that two processes may open the same place at once: "LOOM"."""

# Stores of version 1 have all but this.
_SINCE_2 = (
    """CREATE TABLE leases (
        execution_id text COLLATE "C" PRIMARY KEY, owner text NOT NULL, until_ms bigint NOT NULL, fence bigint NOT NULL
    ) WITH (fillfactor = 70)""",
    'CREATE TABLE contents (hash text COLLATE "C" PRIMARY KEY, text text NOT NULL)',
)

# Ids in "C", so that they are equal, ordered and unique by code points, whatever the database's language.
_TABLES = (
    "CREATE TABLE loom_store (application text NOT NULL, version integer NOT NULL)",
    # Updated by each append: with room on the page, the new version of a row needs no new index entry.
    """CREATE TABLE executions (
        execution_id text COLLATE "C" PRIMARY KEY, flow_id text NOT NULL, status text NOT NULL, head bigint NOT NULL,
        due_ms bigint, fence bigint NOT NULL DEFAULT 0, owner text
    ) WITH (fillfactor = 70)""",
    "CREATE INDEX executions_by_status ON executions (status)",
    """CREATE TABLE events (
        execution_id text COLLATE "C" NOT NULL, sequence bigint NOT NULL, text text NOT NULL, hash text NOT NULL,
        PRIMARY KEY (execution_id, sequence)
    )""",
    """CREATE TABLE snapshots (
        execution_id text COLLATE "C" PRIMARY KEY, sequence bigint NOT NULL, snapshot jsonb NOT NULL
    )""",
    """CREATE TABLE deliveries (
        arrival bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, execution_id text COLLATE "C" NOT NULL,
        delivery_id text COLLATE "C" NOT NULL, "on" text NOT NULL, correlation_key text, payload_text text NOT NULL,
        UNIQUE (execution_id, delivery_id)
    )""",
    *_SINCE_2,
)


def recognise(place: Place) -> Connection:
    """Return a connection to the store, making it if there is no schema or an empty one, and upgrading an older one.

    A place to read only is left as it is.  Raises `NotAStore` for a schema with other things in it, which is left as it
    was, or without a store to read; `StoreVersion` for a store of a newer kernel, `StoreUnavailable` if the database
    cannot be used.
    """
    with refusals(place):
        connection = connect(place)
        try:
            _check_server(connection, place)
            if _is_empty(connection, place):
                if place.read_only:
                    raise NotAStore(f"there is no store in {place}; open it to write, and it is made")
                _create(connection, place)
            if _version(connection, place) < SCHEMA_VERSION and not place.read_only:
                _upgrade(connection, place)
        except BaseException:
            connection.close()
            raise
    return connection


def _check_server(connection: Connection, place: Place) -> None:
    """Raise unless the server can keep our texts."""
    if connection.info.server_version < SERVER_VERSION_MIN * 10_000:
        raise StoreUnavailable(
            f"{place} is on PostgreSQL {connection.info.server_version // 10_000}, the store needs "
            f"{SERVER_VERSION_MIN} or newer"
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreUnavailable(f"{place} has encoding {encoding}; create the database with ENCODING 'UTF8'")


def _is_empty(connection: Connection, place: Place) -> bool:
    """Is there nothing in the schema?  Raises `NotAStore` if there is something and none of it is ours."""
    ours, relations = connection.execute(
        "SELECT count(*) FILTER (WHERE relname = 'loom_store'), count(*) FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s",
        (place.schema,),
    ).fetchall()[0]
    if relations and not ours:
        raise NotAStore(
            f"{place} holds {relations} tables and indexes of another program; choose another schema for the store"
        )
    return not relations


def _create(connection: Connection, place: Place) -> None:
    """Make the tables in one transaction, unless somebody else has made them meanwhile."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_LOCK,))
        if not _is_empty(connection, place):
            return
        # Only if it is missing: IF NOT EXISTS wants the right to create schemas where there is nothing to create, too.
        if not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (place.schema,)).fetchall():
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(place.schema)))
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute("INSERT INTO loom_store VALUES (%s, %s)", (APPLICATION, SCHEMA_VERSION))


def _version(connection: Connection, place: Place) -> int:
    """Return the store's schema version.  Raises `NotAStore`, `StoreVersion`."""
    rows = connection.execute("SELECT application, version FROM loom_store").fetchall()
    if len(rows) != 1 or rows[0][0] != APPLICATION:
        raise NotAStore(f"{place} has a table loom_store that says {rows!r:.200}; choose another schema for the store")
    version: int = rows[0][1]
    if version > SCHEMA_VERSION:
        raise StoreVersion(
            f"{place} has schema version {version}, this kernel reads up to {SCHEMA_VERSION}; upgrade the kernel"
        )
    return version


def _upgrade(connection: Connection, place: Place) -> None:
    """Bring a store of version 1 up to date in one transaction; another process may be at it too."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_LOCK,))
        if _version(connection, place) < SCHEMA_VERSION:
            for statement in _SINCE_2:
                connection.execute(statement)
            connection.execute("UPDATE loom_store SET version = %s", (SCHEMA_VERSION,))
