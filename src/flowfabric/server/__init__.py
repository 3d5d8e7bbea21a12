"""The HTTP server: the engine for every language. Nothing here is imported by ``import flowfabric``."""

from flowfabric.server.app import create_app as create_app
from flowfabric.server.config import ServerConfig as ServerConfig
