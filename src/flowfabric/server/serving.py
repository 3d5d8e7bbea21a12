"""Running a server: opening the engine, its key and its timers, listening, and shutting down in order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
from types import FrameType
from typing import Any

import uvicorn

from flowfabric.engine import Engine
from flowfabric.model.operations.suspension import AlreadySeeded
from flowfabric.model.partitions import PartitionCounts
from flowfabric.server.app import App, Server, create_app
from flowfabric.server.config import FIRST_KID, ServerConfig
from flowfabric.server.http.connection import Bounds, behind, guard
from flowfabric.server.http.cors import with_cors
from flowfabric.server.memory import return_large_buffers
from flowfabric.server.startup import patiently
from flowfabric.stores.kinds import kind_of

_log = logging.getLogger("flowfabric.server")

#: What a store gets that a server is the first to open: as many as clients take for granted who make ids themselves.
NEW_PARTITIONS = PartitionCounts()
#: How long a sample may take that is under way when the server stops.
SAMPLING_GRACE_S = 2.0
#: How long each step of a shutdown may take at least, when the ones before have used up the grace.
LEAST_GRACE_S = 1.0


class _Listener(uvicorn.Server):
    """Tells when it listens, and tells the application when it is about to stop."""

    def __init__(self, options: uvicorn.Config, server: Server) -> None:
        super().__init__(options)
        self._application = server
        self.listening = asyncio.Event()
        #: When it began to stop.
        self.began: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Nothing is captured, so that nothing is raised again: a clean end is a clean exit. Twice means now.
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.began = asyncio.get_running_loop().time()
        self._application.close()
        await super().shutdown(sockets)


class Running:
    """A server that listens. ``port`` is the one it got, if it asked for any."""

    def __init__(self, server: Server, config: ServerConfig, application: App) -> None:
        self.server = server
        self.config = config
        options = uvicorn.Config(
            application,
            host=config.host,
            port=config.port,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            # uvicorn's own ones have no limits, or are slow.
            http=guard(
                Bounds(
                    config.max_connections,
                    config.header_timeout_s,
                    config.write_timeout_s,
                    server.answers,
                ),
                server.metrics.limited,
                behind(application, os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")),
            ),
            proxy_headers=False,
            timeout_keep_alive=config.keep_alive_s,
            backlog=min(2_048, config.max_connections),
            timeout_graceful_shutdown=max(1, config.grace_ms // 1000),
        )
        self._listener = _Listener(options, server)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        port: int = self._listener.servers[0].sockets[0].getsockname()[1]
        return port

    async def run(self, door: socket.socket | None = None) -> None:
        """Serve until SIGINT or SIGTERM, or until ``stop``; on a socket that listens already, if one is given. A cancel
        is a stop, another one ends everything at once."""
        serving = asyncio.ensure_future(self._listener.serve(None if door is None else [door]))
        cancelled: asyncio.CancelledError | None = None
        while not serving.done():
            try:
                await asyncio.wait((serving,))
            except asyncio.CancelledError as error:
                self._listener.force_exit = cancelled is not None
                cancelled = error
                self.stop()
        # Those not done within the grace.
        for connection in list(self._listener.server_state.connections):
            connection.transport.abort()
        if cancelled is not None:
            if not serving.cancelled():
                serving.exception()
            raise cancelled
        serving.result()

    async def started(self) -> None:
        """Wait until connections are accepted."""
        await self._listener.listening.wait()

    def stop(self) -> None:
        """Accept no more, and let what runs finish."""
        self._listener.should_exit = True

    async def drain(self) -> None:
        """Wait for reads of streams, then for the engine's own work and its timers: as long as is left of the grace."""
        loop = asyncio.get_running_loop()
        until = (self._listener.began or loop.time()) + self.config.grace_ms / 1000
        permits = self.server.stream_ops
        self.server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(until - loop.time(), LEAST_GRACE_S)):
                await permits.idle.wait()
        late = await self.server.engine.shutdown_prepare(int(1_000 * max(until - loop.time(), LEAST_GRACE_S)))
        if late or permits.taken:
            self.server.metrics.shutdown_timeouts.add()
            _log.warning("shutdown: %s tasks and %s reads were abandoned", late, permits.taken)


async def open_engine(config: ServerConfig) -> Engine:
    """The engine a server runs on: with its first key, its lanes and its timers."""
    options: dict[str, Any] = {}
    kind = kind_of(config.store_url)
    if kind != "memory":
        options["migrate"] = config.migrate
    if kind == "postgres":
        options["pool_size"] = config.postgres_pool_size
    open_once = functools.partial(
        Engine.open,
        config.store_url,
        single_node=config.single_node,
        partitions=config.partitions,
        new_partitions=NEW_PARTITIONS,
        **options,
    )
    engine = await (patiently(open_once, config.store_patience_s) if kind == "valkey" else open_once())
    try:
        await _give_first_key(engine, config.hmac_secret)
        await engine.seed_lanes(config.lanes)
        if (durability := engine.durability) is not None:
            _log.info("%s: %s", engine.backend_label, durability.sentence())
        engine.start_timers()
    except BaseException:
        await engine.close()
        raise
    return engine


async def _give_first_key(engine: Engine, secret: str) -> None:
    """Give a store without a key the configured one. After a rotation the keys of the store decide, and the first one
    may be gone."""
    kids = await engine.list_waitpoint_hmac_kids()
    if kids.current_kid not in (None, FIRST_KID):
        return
    seeded = await engine.seed_waitpoint_hmac_secret(kid=FIRST_KID, secret_hex=secret)
    if isinstance(seeded, AlreadySeeded) and not seeded.same_secret:
        _log.warning(
            "the store holds another secret for key %s than FF_WAITPOINT_HMAC_SECRET; the stored one is used: "
            "rotate keys with POST /v1/admin/rotate-waitpoint-secret",
            seeded.kid,
        )


async def _end(sampling: asyncio.Task[None]) -> None:
    """Let the sample under way be finished, unless the store does not answer."""
    await asyncio.wait((sampling,), timeout=SAMPLING_GRACE_S)
    sampling.cancel()
    await asyncio.wait((sampling,))
    if not sampling.cancelled() and (error := sampling.exception()) is not None:
        _log.error("sampling failed", exc_info=error)


async def _tell(running: Running, config: ServerConfig) -> None:
    await running.started()
    _log.info("HTTP API listening on %s:%s", config.host, running.port)


async def serve(config: ServerConfig) -> None:
    """Run a server until it is told to stop."""
    return_large_buffers()
    engine = await open_engine(config)
    try:
        server = create_app(engine, config)
        running = Running(server, config, with_cors(server, config))
        for notice in config.notices:
            _log.warning("%s", notice)
        if config.api_token is None:
            _log.warning("no FF_API_TOKEN: operator and admin routes need no credential")
            _log.warning("no FF_API_TOKEN: reads that show payloads and tokens need no credential")
        sampling = asyncio.ensure_future(server.sampler.run(server.closing))
        telling = asyncio.ensure_future(_tell(running, config))
        try:
            await running.run()
        finally:
            telling.cancel()
            try:
                await running.drain()
            finally:
                await _end(sampling)
    finally:
        await engine.close()
