"""``flowfabric server``, and its flags."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated

from cyclopts import Group, Parameter

from flowfabric.cli.application import OK, REFUSED, RUNNING, application, command
from flowfabric.cli.store_option import AS_TEXT, How
from flowfabric.cli.terminal import err, say_line
from flowfabric.model.errors import EngineError
from flowfabric.stores.environment import ConfigError

# -- flags of ``flowfabric server`` that say no more than a variable of the environment does -------------------------

_MORE = Group("Limits and times", sort_key=50)
_Whole = int | None
_Number = float | None


@Parameter(name="*", group=_MORE)
@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What seldom has to be said. Names and bounds are those of ``server.environment``."""

    flow_partitions: Annotated[_Whole, Parameter(help="Partitions of executions (FF_FLOW_PARTITIONS).")] = None
    budget_partitions: Annotated[_Whole, Parameter(help="Partitions of budgets (FF_BUDGET_PARTITIONS).")] = None
    quota_partitions: Annotated[_Whole, Parameter(help="Partitions of quotas (FF_QUOTA_PARTITIONS).")] = None
    store_patience_s: Annotated[
        _Number, Parameter(help="Seconds to wait for Valkey at startup (FF_STORE_PATIENCE_S).")
    ] = None
    max_concurrent_stream_ops: Annotated[
        _Whole, Parameter(help="Concurrent stream reads and tails (FF_MAX_CONCURRENT_STREAM_OPS).")
    ] = None
    max_followers: Annotated[_Whole, Parameter(help="Concurrent event followers (FF_MAX_FOLLOWERS).")] = None
    max_body_bytes: Annotated[_Whole, Parameter(help="Bytes of all request bodies in memory (FF_MAX_BODY_BYTES).")] = (
        None
    )
    max_answer_bytes: Annotated[
        _Whole, Parameter(help="Bytes of unsent responses in memory (FF_MAX_ANSWER_BYTES).")
    ] = None
    header_timeout_s: Annotated[
        _Number, Parameter(help="Seconds to receive a request's headers (FF_HEADER_TIMEOUT_S).")
    ] = None
    body_timeout_s: Annotated[_Number, Parameter(help="Seconds to receive a request's body (FF_BODY_TIMEOUT_S).")] = (
        None
    )
    write_timeout_s: Annotated[_Number, Parameter(help="Seconds a client may read nothing (FF_WRITE_TIMEOUT_S).")] = (
        None
    )
    keep_alive_s: Annotated[_Whole, Parameter(help="Seconds a connection may be idle (FF_KEEP_ALIVE_S).")] = None
    shutdown_grace_s: Annotated[
        _Whole, Parameter(help="Seconds a shutdown waits for what runs (FF_SHUTDOWN_GRACE_S).")
    ] = None
    rate_burst: Annotated[
        _Whole, Parameter(help="Requests allowed above the rate limit in a burst (FF_RATE_BURST).")
    ] = None
    waitpoint_hmac_grace_ms: Annotated[
        _Whole, Parameter(help="How long a previous key is accepted (FF_WAITPOINT_HMAC_GRACE_MS).")
    ] = None
    reclaim_grace_ms: Annotated[_Whole, Parameter(help="How long an expired lease is kept (FF_RECLAIM_GRACE_MS).")] = (
        None
    )
    no_metrics: Annotated[bool, Parameter(help="Do not serve /metrics (FF_METRICS=0).", negative=())] = False
    no_console: Annotated[bool, Parameter(help="Do not serve the console at / (FF_CONSOLE=0).", negative=())] = False
    trace_url: Annotated[
        str | None,
        Parameter(help="Where the console links traces to, with {trace_id} in it (FF_TRACE_URL)."),
    ] = None
    sentry_environment: Annotated[
        str | None, Parameter(help="The environment name for Sentry (FF_SENTRY_ENVIRONMENT).")
    ] = None
    sentry_release: Annotated[str | None, Parameter(help="The release name for Sentry (FF_SENTRY_RELEASE).")] = None

    def over(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment with what was said instead of it."""
        found = {}
        for each in fields(self):
            value, off = getattr(self, each.name), each.name.startswith("no_")
            if off and value:
                found[f"FF_{each.name.removeprefix('no_').upper()}"] = "0"
            elif not off and value is not None:
                found[f"FF_{each.name.upper()}"] = str(value)
        return {**environment, **found}


AS_IT_IS = Tuning()


# -- ``flowfabric server`` -------------------------------------------------------------------------------------------


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
    migrate: Annotated[str | None, Parameter(help="apply migrations, or check that they are (FF_MIGRATE).")] = None,
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
        from flowfabric.server.serving import serve
        from flowfabric.server.telemetry.sentry import reporting
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
