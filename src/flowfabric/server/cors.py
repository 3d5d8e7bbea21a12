"""Which pages of other origins may call. Nobody, unless the configuration names them."""

from __future__ import annotations

from typing import cast

from starlette.middleware.cors import CORSMiddleware

from flowfabric.server.app import App, Server
from flowfabric.server.config import ServerConfig


def with_cors(server: Server, config: ServerConfig) -> App:
    """The application, with the headers that browsers ask for."""
    if config.cors_origins is None:
        return server
    everybody = config.cors_origins == ("*",)
    headers = ["content-type"] if config.api_token is None else ["content-type", "authorization"]
    wrapped = CORSMiddleware(
        server,
        allow_origins=list(config.cors_origins),
        allow_methods=["*"] if everybody else ["GET", "POST", "PUT", "DELETE"],
        allow_headers=["*"] if everybody else [*headers, "idempotency-key", "last-event-id"],
    )
    return cast(App, wrapped)
