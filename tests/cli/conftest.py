"""Where commands look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowfabric.server import ServerConfig
from tests.sdk.serving import serving

TOKEN = "token-of-this-test"


#: Further stores, and the fixtures that make them.
STORES = {"postgres": "prepared_postgres_dsn", "valkey": "valkey_url"}


@pytest.fixture(params=["store", "server", *STORES])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store's URL, to put something in; commands look at it, or at a server in front of it."""
    found = f"sqlite:///{tmp_path}/ff.db"
    monkeypatch.delenv("FF_API_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    if request.param != "server":
        found = request.getfixturevalue(STORES[request.param]) if request.param in STORES else found
        monkeypatch.setenv("FF_URL", found)
        yield found
        return
    with serving(found, ServerConfig(port=0, api_token=TOKEN)) as address:
        monkeypatch.setenv("FF_URL", address)
        monkeypatch.setenv("FF_API_TOKEN", TOKEN)
        yield found
