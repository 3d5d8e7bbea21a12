"""``flowfabric server``."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from flowfabric.cli.application import OK, REFUSED, application
from flowfabric.model.errors import EngineError


@application.command
def server(
    *,
    store: Annotated[str | None, Parameter(help="The store's URL (FF_STORE_URL).")] = None,
    listen: Annotated[str | None, Parameter(help="Address and port (FF_LISTEN_ADDR).")] = None,
    single_node: Annotated[bool, Parameter(help="SQLite is meant, on this machine alone (FF_DEV_MODE=1).")] = False,
    allow_unauthenticated: Annotated[
        bool, Parameter(help="Let others connect without a credential (FF_ALLOW_UNAUTHENTICATED=1).")
    ] = False,
    cors_origins: Annotated[str | None, Parameter(help="Origins that may call, or * (FF_CORS_ORIGINS).")] = None,
    lanes: Annotated[str | None, Parameter(help="Lanes, with commas between (FF_LANES).")] = None,
    verbose: Annotated[bool, Parameter(help="Say more.")] = False,
) -> int:
    """Serve the engine over HTTP and run its timers. SIGTERM finishes what runs.

    Secrets are read from the environment only: FF_API_TOKEN and FF_WAITPOINT_HMAC_SECRET.
    """
    try:
        from flowfabric.server.config import ConfigError, ServerConfig
        from flowfabric.server.serving import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        return _refused(f"the server needs {error.name}; install it with: pip install 'flowfabric[server]'")
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        config = ServerConfig.from_environment(
            store_url=store,
            listen=listen,
            single_node=single_node,
            allow_unauthenticated=allow_unauthenticated,
            cors_origins=cors_origins,
            lanes=lanes,
        )
        asyncio.run(serve(config))
    except (ConfigError, EngineError, OSError) as error:
        return _refused(str(error))
    return OK


def _refused(sentence: str) -> int:
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"flowfabric: {sentence}", markup=False)
    return REFUSED
