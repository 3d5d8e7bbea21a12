"""The server's fixtures, here too."""

from tests.server.conftest import client, engine, server

__all__ = ["client", "engine", "server"]
