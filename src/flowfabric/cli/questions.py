"""Questions that wait for people: asks, approve."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.markup import escape

from flowfabric.cli.application import ACTING, LOOKING, OK, application, command
from flowfabric.cli.stores import NOWHERE, Namespace, Where, on_store
from flowfabric.cli.terminal import Misused, say_json, shortened, show_table, told
from flowfabric.sdk.app import App


@command(application, group=LOOKING, shows=("flowfabric asks", "flowfabric asks RUN --json"))
def asks(
    run: Annotated[str | None, Parameter(help="Only those of this run.")] = None,
    /,
    *,
    namespace: Namespace = "default",
    where: Where = NOWHERE,
) -> int:
    """Questions that wait for an answer."""
    found = on_store(where, lambda app: app.asks(run), namespace)
    if where.json:
        fields = ("id", "run_id", "question", "show", "of", "need", "schema")
        say_json([{name: getattr(each, name) for name in fields} for each in found])
        return OK
    show_table(
        ("question", "asked of", "needs", "shown", "id"),
        (
            (
                escape(each.question),
                escape(", ".join(each.of) or "whoever has the link"),
                str(each.need),
                "" if each.show is None else escape(shortened(msgspec.json.encode(each.show).decode(), 60)),
                escape(each.id),
            )
            for each in found
        ),
        "nobody is asked anything",
        keep="id",
    )
    return OK


@command(
    application,
    group=ACTING,
    shows=(
        "flowfabric approve LINK",
        "flowfabric approve '{fp:3}:…' true --by ann",
        'flowfabric approve LINK \'{"ok": false, "why": "too long"}\'',
    ),
)
def approve(
    link: Annotated[str, Parameter(help="The link an approver was given, or the id of a question.")],
    answer: Annotated[str, Parameter(help="The answer as JSON: true, false, or an object.")] = "true",
    /,
    *,
    by: Annotated[str | None, Parameter(help="Who answers, if a question's id is given.")] = None,
    where: Where = NOWHERE,
) -> int:
    """Answer a question."""
    try:
        value = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        raise Misused(f"{answer}: the answer is JSON, such as true or '{{\"ok\": true}}'") from None

    async def give(app: App) -> None:
        if not link.startswith("{fp:"):
            await app.answer(link, value, identity=by or "")
            return
        found = [each for each in await app.asks(link) if each.id == link]
        if not found:
            raise Misused(f"{link}: no such question is open; `flowfabric asks` lists them")
        await found[0].answer(value, by=by)

    on_store(where, give)
    return told("answered", {"answered": link, "answer": value, "by": by}, where.json)
