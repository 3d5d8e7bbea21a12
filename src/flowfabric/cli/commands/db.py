"""``flowfabric db``."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import App as Commands, Parameter
from rich.markup import escape

from flowfabric.cli.application import OK, OPERATING, PROBLEMS, application, command, examples
from flowfabric.cli.store_option import NOWHERE, Where, durability_document, durability_shown, on_store, only_store
from flowfabric.cli.terminal import Misused, progress, say, say_json, told
from flowfabric.model.counting import counted
from flowfabric.model.operations.executions import StoreCapabilities
from flowfabric.model.partitions import PartitionCounts
from flowfabric.sdk.app import App
from flowfabric.stores.migrate import APPLY, Migration, watched
from flowfabric.stores.migration_plan import MigrationPlan, plan as planned
from flowfabric.stores.restored import go_on_behind
from flowfabric.stores.sqlite.permissions import exposed_files, remedy

if TYPE_CHECKING:
    from flowfabric.stores.valkey.durability import Durability

VALKEY = "valkey"
_NO_SCHEMA = "Valkey has no schema to migrate"
_NOT_BEGUN = "there is no store there yet"

db = Commands(
    name="db",
    help="The database: plan and apply migrations, check the tables.",
    help_epilogue=examples("flowfabric db plan", "flowfabric db migrate --url postgresql://localhost/work"),
    group=OPERATING,
    group_commands="Commands",
)
application.command(db)


@command(
    db, "plan", shows=("flowfabric db plan", "flowfabric db plan --sql --url postgresql://localhost/work > change.sql")
)
def plan(
    *,
    sql: Annotated[bool, Parameter(negative=(), help="Print the SQL statements.", show_default=False)] = False,
    where: Where = NOWHERE,
) -> int:
    """Show what `db migrate` would do, and change nothing.

    Exit code 3 if there is something to do.
    """
    found = asyncio.run(planned(only_store(where, "db plan")))
    if sql and found.dialect == VALKEY:
        raise Misused(f"db plan --sql: {_NO_SCHEMA}, so there are no statements to print; leave --sql out")
    code = PROBLEMS if found.pending else OK
    if where.json:
        document = {"dialect": found.dialect, "applied": found.applied, "pending": found.pending}
        say_json(document | ({"sql": found.script} if sql else {}))
        return code
    if sql:
        sys.stdout.write(found.script)
        return code
    if found.dialect == VALKEY:
        begin = f"; {_NOT_BEGUN}, create one with `flowfabric db migrate`" if found.pending else ": nothing to do"
        say(_NO_SCHEMA + begin)
        return code
    for each in found.applied:
        say(f"[green]applied[/green]  {escape(each)}")
    for each in found.pending:
        say(f"[yellow]pending[/yellow]  {escape(each)}")
    say("apply them with `flowfabric db migrate`" if found.pending else "up to date: nothing to do")
    return code


@command(db, shows=("flowfabric db migrate", "flowfabric db migrate --url postgresql://localhost/work"))
def migrate(*, where: Where = NOWHERE) -> int:
    """Bring the tables up to date.

    Creates the SQLite file if it does not exist. PostgreSQL applies each migration in a transaction of its own, SQLite
    all in one. If one fails or the command is interrupted, run it again: it goes on where it was.
    """
    url = only_store(where, "db migrate")

    async def bring() -> MigrationPlan:
        missing = await planned(url)
        done = 0
        with progress(f"migrating {missing.dialect}", len(missing.pending) or None, where.json) as advance:

            def step(migration: Migration) -> None:
                nonlocal done
                done += 1
                advance(done, f"{migration.version:04}_{migration.name}")

            with watched(step):
                # Servers that only check the tables count on this to have made them as they would.
                async with App(url, engine_options={"new_partitions": PartitionCounts(), "migrate": APPLY}) as app:
                    await app.engine.ping()
        return missing

    done = asyncio.run(bring())
    sentence = "applied " + ", ".join(done.pending) if done.pending else "up to date: nothing to do"
    if done.dialect == VALKEY:
        sentence = _NO_SCHEMA + ("; created a store there" if done.pending else ": nothing to do")
    return told(escape(sentence), {"applied": done.pending}, where.json)


@command(db, shows=("flowfabric db restored", "flowfabric db restored --url postgresql://localhost/work"))
def restored(*, where: Where = NOWHERE) -> int:
    """Mark a database as restored from a backup, before anything uses it again.

    Events get new numbers from now on, and subscribers that have seen events which the backup lacks get a gap error.
    Stop all servers, workers and apps before you restore.
    """
    asyncio.run(go_on_behind(only_store(where, "db restored")))
    return told("subscribers will be told that events may be missing", {"restored": True}, where.json)


@command(db, shows=("flowfabric db check", "flowfabric db check --url http://127.0.0.1:9090"))
def check(*, where: Where = NOWHERE) -> int:
    """Show which store it is, whether it responds, whether its tables are up to date, and whether others can read it.

    For Valkey, also show what a commit survives. Exit code 3 if the tables are not up to date.
    """

    async def look(app: App) -> tuple[StoreCapabilities, Durability | None]:
        await app.engine.ping()
        return await app.engine.capabilities(), None if where.is_server else app.engine.durability

    plan = None if where.is_server else asyncio.run(planned(where.address()))
    if plan is not None and plan.pending:
        missing = plan.pending
        sentence = (
            f"{counted(len(missing), 'migration is', 'migrations are')} missing: {', '.join(missing)}; "
            "run `flowfabric db migrate`"
        )
        if plan.dialect == VALKEY:
            sentence = f"{_NOT_BEGUN}; run `flowfabric db migrate`"
        told(escape(sentence), {"up_to_date": False, "pending": missing}, where.json)
        return PROBLEMS
    found, durability = on_store(where, look)
    sound = "its data layout is current" if found.family == VALKEY else "tables are up to date"
    sentence = f"{found.family} {found.version}: responds, {sound}"
    readable = () if where.is_server else exposed_files(where.address())
    if readable:
        sentence += f"; others can read it, lock them out: {remedy(readable)}"
    if durability is not None:
        sentence += f"; {durability_shown(durability)}"
    document = {"store": found.family, "version": found.version, "up_to_date": True, "readable_by_others": readable}
    return told(escape(sentence), document | durability_document(durability), where.json)
