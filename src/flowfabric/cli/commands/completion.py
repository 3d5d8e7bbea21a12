"""``flowfabric completion``, and ``flowfabric --install-completion``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from flowfabric.cli import filters
from flowfabric.cli.application import OK, OPERATING, application, command
from flowfabric.cli.run_ids import short
from flowfabric.cli.store_option import NOWHERE, Where, app_at, is_server
from flowfabric.cli.terminal import say_json
from flowfabric.sdk.app import App

application.register_install_completion_command(help="Set up completion for the shell that runs this.")

#: Runs whose ids are offered, and how long somebody who has pressed a key waits for them.
OFFERED: Final = 50
PATIENCE_S: Final = 2.0


@command(
    application,
    group=OPERATING,
    shows=(
        "flowfabric completion bash >> ~/.bash_completion",
        "flowfabric completion zsh > ~/.zfunc/_flowfabric",
        "flowfabric completion fish > ~/.config/fish/completions/flowfabric.fish",
    ),
)
def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish", "runs"],
        Parameter(help="The shell; runs prints the run ids that the scripts offer, the newest 50."),
    ],
    /,
    *,
    where: Where = NOWHERE,
) -> int:
    """Print a script that lets a shell complete commands, run ids, files and states.

    Ids come from the store or server in FF_URL or FF_BACKEND, or from ./flowfabric.db; if it cannot be reached at
    once, no ids are offered.
    """
    if shell == "runs":
        found = _runs(where)
        if where.json:
            say_json({"runs": found})
        else:
            sys.stdout.write("".join(f"{each}\n" for each in found))
        return OK
    script = application.generate_completion(prog_name="flowfabric", shell=shell)
    if where.json:
        say_json({"shell": shell, "script": script})
    else:
        sys.stdout.write(script)
    return OK


def _runs(where: Where) -> list[str]:
    """The newest runs of the store. A person who presses Tab wants no complaints: without a store there are no runs."""

    async def read() -> list[str]:
        url = where.address()
        # Pressing a key changes no tables.
        found = app_at(url, where.token) if is_server(url) else App(url, engine_options={"migrate": "check"})
        async with asyncio.timeout(PATIENCE_S), found as app:
            question = {"namespaces": None}
            return [short(each.execution_id) async for each in filters.found(app, question, OFFERED, builtin=True)]

    logging.disable()
    try:
        with contextlib.suppress(Exception):
            return asyncio.run(read())
        return []
    finally:
        logging.disable(logging.NOTSET)
