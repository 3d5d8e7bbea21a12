"""Stores that several processes can share. One joins by one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

#: Store name -> URL of a fresh one, given the test's request and temporary folder.
SHARED: dict[str, Callable[[pytest.FixtureRequest, Path], str]] = {
    "sqlite": lambda request, folder: f"sqlite:///{folder}/ff.db",
    "postgres": lambda request, folder: request.getfixturevalue("postgres_dsn"),
    "valkey": lambda request, folder: request.getfixturevalue("valkey_url"),
}
