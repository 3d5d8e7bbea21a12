"""Questions that wait for people: asks, approve."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.markup import escape

from flowfabric.cli.application import ACTING, LOOKING, OK, application, command
from flowfabric.cli.run_ids import read, read_any, short
from flowfabric.cli.store_option import NOWHERE, Namespace, Where, on_store
from flowfabric.cli.terminal import Misused, moment, say_json, shortened, show_table, told
from flowfabric.sdk.app import App
from flowfabric.sdk.asks.answer import Answered


@command(application, group=LOOKING, shows=("flowfabric asks", "flowfabric asks RUN --json"))
def asks(
    run: Annotated[str | None, Parameter(help="Only questions of this run.", converter=read)] = None,
    /,
    *,
    namespace: Namespace = "default",
    where: Where = NOWHERE,
) -> int:
    """List questions that are waiting for an answer."""
    found = on_store(where, lambda app: app.asks(run), namespace)
    if where.json:
        fields = ("id", "run_id", "question", "show", "of", "need", "schema")
        say_json([{name: getattr(each, name) for name in fields} for each in found])
        return OK
    show_table(
        ("question", "asked", "needs", "shown", "id"),
        (
            (
                escape(each.question),
                escape(", ".join(each.of) or "anyone with the link"),
                str(each.need),
                "" if each.show is None else escape(shortened(msgspec.json.encode(each.show).decode(), 60)),
                escape(short(each.id)),
            )
            for each in found
        ),
        "no open questions",
        keep="id",
    )
    return OK


@command(
    application,
    group=ACTING,
    shows=(
        "flowfabric approve LINK",
        "flowfabric approve 3:1f0c… true --by ann",
        'flowfabric approve LINK \'{"ok": false, "why": "too long"}\'',
    ),
)
def approve(
    link: Annotated[str, Parameter(help="The approver's link, or the id of a question.", converter=read_any)],
    answer: Annotated[str, Parameter(help="The answer as JSON: true, false, or an object.")] = "true",
    /,
    *,
    by: Annotated[str | None, Parameter(help="The approver who answers, if you pass a question's id.")] = None,
    where: Where = NOWHERE,
) -> int:
    """Answer a question."""
    try:
        value = msgspec.json.decode(answer)
    except (msgspec.DecodeError, RecursionError):
        raise Misused(f"{answer}: expected JSON, such as true or '{{\"ok\": true}}'") from None

    async def give(app: App) -> Answered:
        if not link.startswith("{fp:"):
            return await app.answer(link, value, identity=by or "")
        found = [each for each in await app.asks(link) if each.id == link]
        if not found:
            raise Misused(f"{link}: no open question with this id or link; `flowfabric asks` lists them")
        return await found[0].answer(value, by=by)

    given = on_store(where, give)
    again = f": this answer was given before, at {moment(given.at_ms)}" if given.repeated else ""
    document = {"answered": link, "answer": value, "by": by, "repeated": given.repeated}
    return told(f"answered{again}", document, where.json)
