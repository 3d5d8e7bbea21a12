"""``flowfabric server``."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated

from cyclopts import Parameter

from flowfabric.cli.application import OK, REFUSED, RUNNING, application, command
from flowfabric.cli.server_flags import AS_IT_IS, Tuning
from flowfabric.cli.stores import AS_TEXT, How
from flowfabric.cli.terminal import err, say_line
from flowfabric.model.errors import EngineError
from flowfabric.stores.environment import ConfigError


@command(
    application,
    group=RUNNING,
    shows=(
        "FF_WAITPOINT_HMAC_SECRET=$(openssl rand -hex 32) flowfabric server --store sqlite:///work.db --single-node",
        "flowfabric server --store postgresql://localhost/work --listen 0.0.0.0:9090",
        "flowfabric server --store valkey://localhost:6379/0?durability=always",
    ),
)
def server(
    *,
    store: Annotated[str | None, Parameter(help="The store's URL (FF_STORE_URL).")] = None,
    listen: Annotated[str | None, Parameter(help="Address and port (FF_LISTEN_ADDR).")] = None,
    single_node: Annotated[
        bool, Parameter(help="Allow SQLite, which serves this machine only (FF_DEV_MODE=1).", negative=())
    ] = False,
    allow_unauthenticated: Annotated[
        bool,
        Parameter(help="Let other machines connect without a credential (FF_ALLOW_UNAUTHENTICATED=1).", negative=()),
    ] = False,
    cors_origins: Annotated[
        str | None, Parameter(help="Origins that may call the server, or * (FF_CORS_ORIGINS).")
    ] = None,
    lanes: Annotated[str | None, Parameter(help="Lanes, separated by commas (FF_LANES).")] = None,
    require_credential: Annotated[
        bool, Parameter(help="Refuse every call without a credential (FF_REQUIRE_CREDENTIAL=1).", negative=())
    ] = False,
    migrate: Annotated[str | None, Parameter(help="apply migrations, or check for them (FF_MIGRATE).")] = None,
    pool_size: Annotated[int | None, Parameter(help="Connections to PostgreSQL (FF_POSTGRES_POOL_SIZE).")] = None,
    max_connections: Annotated[int | None, Parameter(help="Concurrent connections (FF_MAX_CONNECTIONS).")] = None,
    rate_limit: Annotated[float | None, Parameter(help="Requests per second and caller (FF_RATE_LIMIT).")] = None,
    log: Annotated[str | None, Parameter(help="The log level or filter, such as info (FF_LOG).")] = None,
    tuning: Tuning = AS_IT_IS,
    verbose: Annotated[bool, Parameter(name=("--verbose", "-v"), help="The same as --log debug.", negative=())] = False,
    how: How = AS_TEXT,
) -> int:
    """Serve the engine over HTTP and run its timers.

    SIGTERM finishes open requests first. Secrets come from the environment only: FF_API_TOKEN and
    FF_WAITPOINT_HMAC_SECRET.
    With --json, one line of JSON on standard output shows the settings; logs go to standard error.
    """
    try:
        from flowfabric.server.config import ServerConfig
        from flowfabric.server.reporting import reporting
        from flowfabric.server.serving import serve
        from flowfabric.telemetry.logs import configure
    except ModuleNotFoundError as error:
        return refused(needed(error))
    try:
        environment = tuning.over(os.environ)
        # The engine reads some of them itself.
        os.environ.update(environment)
        config = ServerConfig.from_environment(
            environment,
            store_url=store,
            listen=listen,
            single_node=single_node,
            allow_unauthenticated=allow_unauthenticated,
            cors_origins=cors_origins,
            lanes=lanes,
            require_credential=require_credential,
            migrate=migrate,
            pool_size=pool_size,
            max_connections=max_connections,
            rate_limit=rate_limit,
            log=log or ("debug" if verbose else None),
        )
        with reporting(config):
            configure(config.log, sys.stderr if how.json else sys.stdout)
            if how.json:
                say_line({"listen": f"{config.host}:{config.port}", "lanes": config.lanes})
            asyncio.run(serve(config))
    except (ConfigError, EngineError, OSError) as error:
        return refused(str(error))
    return OK


def needed(error: ModuleNotFoundError) -> str:
    """What to install for a server; other missing modules are a bug and stay one."""
    if error.name not in ("starlette", "uvicorn"):
        raise error
    return f"the server needs {error.name}; install it with: pip install 'flowfabric[server]'"


def refused(sentence: str) -> int:
    """Say why nothing was started."""
    err().print(f"flowfabric: {' '.join(sentence.split())}", markup=False)
    return REFUSED
