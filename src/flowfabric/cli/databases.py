"""``flowfabric db``."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

from cyclopts import App as Commands, Parameter
from rich.markup import escape

from flowfabric.cli.application import OK, OPERATING, PROBLEMS, application, command, examples
from flowfabric.cli.stores import NOWHERE, Where, on_store, only_store
from flowfabric.cli.terminal import progress, say, say_json, told
from flowfabric.sdk.app import App
from flowfabric.stores.migrate import Migration, watched
from flowfabric.stores.planning import plan as planned

db = Commands(
    name="db",
    help="The database: plan and do migrations, see what is there.",
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
    sql: Annotated[bool, Parameter(negative=(), help="Print the statements.", show_default=False)] = False,
    where: Where = NOWHERE,
) -> int:
    """What `db migrate` would do; nothing is changed.

    Exit code 3 if there is something to do.
    """
    found = asyncio.run(planned(only_store(where, "db plan")))
    code = PROBLEMS if found.pending else OK
    if where.json:
        document = {"dialect": found.dialect, "applied": found.applied, "pending": found.pending}
        say_json(document | ({"sql": found.script} if sql else {}))
        return code
    if sql:
        sys.stdout.write(found.script)
        return code
    for each in found.applied:
        say(f"[green]applied[/green]  {escape(each)}")
    for each in found.pending:
        say(f"[yellow]to do[/yellow]    {escape(each)}")
    say("`flowfabric db migrate` does it, in one transaction" if found.pending else "up to date: nothing to do")
    return code


@command(db, shows=("flowfabric db migrate", "flowfabric db migrate --url postgresql://localhost/work"))
def migrate(*, where: Where = NOWHERE) -> int:
    """Bring the tables up to date.

    Makes a SQLite file that does not exist. All files are applied in one transaction, each told of as it is applied: if
    one fails, nothing is changed. Repeating it changes nothing.
    """
    url = only_store(where, "db migrate")

    async def bring() -> tuple[str, ...]:
        missing = await planned(url)
        done = 0
        with progress(f"migrating {missing.dialect}", len(missing.pending) or None, where.json) as advance:

            def step(migration: Migration) -> None:
                nonlocal done
                done += 1
                advance(done, f"{migration.version:04}_{migration.name}")

            with watched(step):
                async with App(url) as app:
                    await app.engine.ping()
        return missing.pending

    done = asyncio.run(bring())
    sentence = "applied " + ", ".join(done) if done else "up to date: nothing was to be done"
    return told(escape(sentence), {"applied": done}, where.json)


@command(db, shows=("flowfabric db check", "flowfabric db check --url http://127.0.0.1:9090"))
def check(*, where: Where = NOWHERE) -> int:
    """Say which store it is, whether it answers, and whether its tables are up to date.

    Exit code 3 if they are not.
    """

    async def look(app: App) -> Any:
        await app.engine.ping()
        return await app.engine.capabilities()

    missing = () if where.is_server else asyncio.run(planned(where.address())).pending
    if missing:
        sentence = f"{len(missing)} migrations are missing: {', '.join(missing)}; run `flowfabric db migrate`"
        told(escape(sentence), {"up_to_date": False, "pending": missing}, where.json)
        return PROBLEMS
    found = on_store(where, look)
    sentence = f"{found.family} {found.version}: answers, tables are up to date"
    return told(escape(sentence), {"store": found.family, "version": found.version, "up_to_date": True}, where.json)
