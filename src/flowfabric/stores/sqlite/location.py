"""Where a SQLite database lives: a path, an in-memory name, or a URI."""

from __future__ import annotations

import os
import uuid
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct


class Location(Struct, frozen=True):
    """A database as ``sqlite3.connect(uri, uri=True)`` takes it."""

    uri: str
    in_memory: bool
    #: The canonical path of a file, or the shared name of a database in memory.
    identity: str
    #: Whether opening it makes it if it is not there.
    may_create: bool = True


def locate(url: str) -> Location:
    """Read ``sqlite:///path``, ``sqlite:///:memory:``, ``file:…`` or a bare path."""
    text = url
    if text.startswith("sqlite:"):
        # Three slashes name a path relative to the working directory, four an absolute one.
        text = text.removeprefix("sqlite:").removeprefix("//").removeprefix("/")
    if text in (":memory:", ""):
        name = f"file:ff-{uuid.uuid4()}?mode=memory&cache=shared"
        return Location(name, True, name)
    if text.startswith("file:"):
        return _from_uri(text)
    path = os.path.realpath(text)
    return Location(f"file:{_quoted(path)}", False, path)


def _from_uri(text: str) -> Location:
    parts = urlsplit(text)
    options = dict(parse_qsl(parts.query))
    if parts.path.startswith(":memory:") or options.get("mode") == "memory":
        return Location(text, True, text)
    path = os.path.realpath(unquote(parts.path))
    return Location(text, False, path, options.get("mode", "rwc") == "rwc" and "immutable" not in options)


def _quoted(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
