"""The console's files: where they are, under which policy, and nothing that leads elsewhere."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import httpx
import pytest

from flowfabric.engine import Engine
from flowfabric.engine.operation_table import OPERATIONS
from flowfabric.server import ServerConfig, console, create_app
from flowfabric.server.console import assets
from tests.server.conftest import client_of


async def test_pages(client: httpx.AsyncClient) -> None:
    for path, title in (("/", "FlowFabric"), ("/answer", "A question for you")):
        found = await client.get(path, headers={"accept-encoding": "identity"})
        assert found.headers["content-type"] == "text/html; charset=utf-8"
        assert f"<title>{title}</title>" in found.text
        policy = found.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "frame-ancestors 'none'" in policy
        assert found.headers["referrer-policy"] == "no-referrer"
        assert found.headers["x-content-type-options"] == "nosniff"


async def test_files_are_asked_for_again_and_not_sent_again(client: httpx.AsyncClient) -> None:
    first = await client.get("/console/app.js", headers={"accept-encoding": "identity"})
    assert first.headers["content-type"] == "text/javascript; charset=utf-8"
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for known in (tag, f'"other", {tag}', f"W/{tag}"):
        again = await client.get("/console/app.js", headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
    changed = await client.get("/console/app.js", headers={"if-none-match": '"other"'})
    assert changed.status_code == 200
    packed = await client.get("/console/vendor/uplot.js", headers={"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(packed.content) / 3
    head = await client.head("/console/app.js")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    "path",
    ["/console", "/console/", "/console/nothing.js", "/console/../app.py", "/console/%2e%2e/__init__.py",
     "/console/vendor/README.md", "/console/vendor/LICENSE.preact", "/console/index.html", "/index.html"],
)  # fmt: skip
async def test_nothing_else_is_served(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 404


async def test_the_console_can_be_left_out(engine: Engine) -> None:
    async with client_of(create_app(engine, ServerConfig(console=False))) as client:
        assert (await client.get("/")).status_code == 404
        assert (await client.get("/console/app.js")).status_code == 404
    config = ServerConfig.from_environment(
        {"FF_STORE_URL": "memory://", "FF_WAITPOINT_HMAC_SECRET": "ab" * 32, "FF_CONSOLE": "0"}
    )
    assert not config.console
    async with client_of(create_app(engine, ServerConfig())) as client:
        assert (await client.post("/")).status_code == 404


async def test_files_are_for_everybody(engine: Engine) -> None:
    async with client_of(create_app(engine, ServerConfig(require_credential=True))) as client:
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/v1/namespaces")).status_code == 401


def test_comments_stay_here_and_every_line_keeps_its_number() -> None:
    static = Path(console.__file__).parent / "static"
    for path, file in assets().items():
        source = static / path.removeprefix("console/")
        if not path.endswith((".js", ".css")) or "/vendor/" in path:
            assert not source.is_file() or file.body == source.read_bytes(), path
            continue
        told, sent = source.read_text().splitlines(), file.body.decode().splitlines()
        assert len(told) == len(sent), path
        for written, line in zip(told, sent, strict=True):
            comment = written.lstrip().startswith(("//", "/*", "* ")) or written.strip().endswith("*/")
            assert line == ("" if comment else written), path


def test_no_file_leads_elsewhere_or_makes_markup_from_text() -> None:
    own = {path: file.body.decode() for path, file in assets().items() if "/vendor/" not in path}
    assert len(own) > 20
    for path, text in own.items():
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), path
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "dangerouslySetInnerHTML",
            "document.write",
            "eval(",
        ):
            assert word not in text, (path, word)
    for path, file in assets().items():
        assert gzip.decompress(file.packed) == file.body, path


def test_the_console_asks_the_server_what_a_caller_may_do() -> None:
    """By the names of operations that the server tells; a name that is none would hide something from everybody."""
    texts = [path.read_text() for path in Path(console.__file__).parent.rglob("*.js") if "vendor" not in path.parts]
    named = {name for text in texts for name in re.findall(r'\b(?:may\(|needs: )"(\w+)"', text)}
    assert len(named) > 20
    assert named <= {name for name, each in OPERATIONS.items() if each.http}
