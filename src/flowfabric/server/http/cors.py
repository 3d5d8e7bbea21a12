"""Which pages of other origins may call. Nobody, unless the configuration names them."""

from __future__ import annotations

from typing import cast

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from flowfabric.server.app import App, Server
from flowfabric.server.config import ServerConfig
from flowfabric.server.http.cross_site import EVERYBODY
from flowfabric.server.http.response import GUARDED


class _Cors(CORSMiddleware):
    """Answers what browsers ask beforehand, as carefully as everything else is answered."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        for name, value in GUARDED:
            response.headers[name.decode()] = value.decode()
        return response


def with_cors(server: Server, config: ServerConfig) -> App:
    """The application, with the headers that browsers ask for."""
    if config.cors_origins is None:
        return server
    everybody = config.cors_origins == EVERYBODY
    asked_for = config.api_token is not None or config.require_credential
    headers = ["content-type", "authorization"] if asked_for else ["content-type"]
    wrapped = _Cors(
        server,
        allow_origins=list(config.cors_origins),
        allow_methods=["*"] if everybody else ["GET", "POST", "PUT", "DELETE"],
        allow_headers=["*"] if everybody else [*headers, "idempotency-key", "last-event-id"],
    )
    return cast(App, wrapped)
