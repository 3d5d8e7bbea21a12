"""The OpenAPI document, made from the routes and their types."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

import msgspec

from flowfabric import __version__
from flowfabric.engine.operation_table import Subject
from flowfabric.model.ids import BudgetId, EdgeId, ExecutionId, FlowId, LaneId
from flowfabric.model.operations.access import Scope
from flowfabric.server.http.request import Blob
from flowfabric.server.http.response import CAUTION, Headers, variant_name
from flowfabric.server.operations import Route, Variants

REFERENCES = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"{(\w+)}")
_IDS: dict[Any, dict[str, Any]] = {
    ExecutionId: {"type": "string", "description": "{fp:N}:<uuid>"},
    LaneId: {"type": "string", "minLength": 1, "maxLength": 64},
    **{kind: {"type": "string", "format": "uuid"} for kind in (FlowId, EdgeId, BudgetId)},
}
_BLOB = {
    "oneOf": [
        {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}},
        {"type": "string", "contentEncoding": "base64"},
    ]
}
_PROBLEM = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {"type": "string"},
        "kind": {"type": "string"},
        "retryable": {"type": "boolean"},
        "started": {"type": "boolean"},
    },
}


def _hook(kind: type) -> dict[str, Any]:
    if kind is Blob:
        return dict(_BLOB)
    if kind in _IDS:
        return dict(_IDS[kind])
    raise NotImplementedError(kind)


def document(routes: tuple[Route, ...]) -> dict[str, Any]:
    """The whole document."""
    kinds = list(dict.fromkeys(kind for route in routes for kind in _kinds(route)))
    shown, schemas = msgspec.json.schema_components(kinds, schema_hook=_hook, ref_template=REFERENCES)
    references = dict(zip(kinds, shown, strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, references, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "FlowFabric", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM, **schemas},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _kinds(route: Route) -> list[Any]:
    found = [] if route.body is None else [route.body]
    for answer in route.answers.values():
        if isinstance(answer, Variants):
            found += answer.kinds
        elif answer is not None:
            found.append(answer)
    if route.query is not None:
        found.append(route.query)
    return found


def _operation(route: Route, references: dict[Any, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": [*_path(route), *_query(route, references, schemas)],
        "responses": {str(status): _response(route, answer, references) for status, answer in route.answers.items()},
    }
    problem = {"content": {"application/json": {"schema": {"$ref": REFERENCES.format(name="Problem")}}}}
    found["responses"]["default"] = {"description": "Refused, and why", **problem}
    if route.operation.scopes:
        found["security"] = [{"token": []}]
        found["description"] = f"Scope: {_scopes(route, '`')}."
    if route.body is not None:
        schema = references[route.body]
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return found


def _scopes(route: Route, quote: str = "") -> str:
    """Which scopes suffice, in words."""
    scopes = route.operation.scopes
    return "any" if len(scopes) == len(Scope) else " or ".join(sorted(f"{quote}{each}{quote}" for each in scopes))


def _path(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _path_schema(name, route.owner)}
        for name in _PARAMETER.findall(route.path)
    ]


_EXECUTION = {"type": "string", "format": "execution-id", "description": "`{fp:7}:` and a UUID, percent-encoded."}
_UUID = {"type": "string", "format": "uuid"}


def _path_schema(name: str, owner: Subject | None) -> dict[str, Any]:
    if name == "idx":
        return {"type": "integer", "minimum": 0}
    if name == "id":
        return _EXECUTION if owner is Subject.EXECUTION else _UUID
    return {"type": "string"}


def _query(route: Route, references: dict[Any, Any], schemas: dict[str, Any]) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    schema = references[route.query]
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": each}
        for name, each in schema["properties"].items()
    ]


def _response(route: Route, answer: Any, references: dict[Any, Any]) -> dict[str, Any]:
    if answer is None:
        if route.media == "application/json":
            return {"description": "Nothing"}
        return {"description": route.summary, "content": {route.media: {"schema": {"type": "string"}}}}
    schema = references[answer] if not isinstance(answer, Variants) else _variants(answer, references)
    return {"description": route.summary, "content": {route.media: {"schema": schema}}}


def _variants(answer: Variants, references: dict[Any, Any]) -> dict[str, Any]:
    shown = [_variant(kind, references) for kind in answer.kinds]
    return shown[0] if len(shown) == 1 else {"oneOf": shown}


def _variant(kind: Any, references: dict[Any, Any]) -> dict[str, Any]:
    name = variant_name(kind)
    if not kind.__struct_fields__:
        return {"type": "string", "const": name}
    return {"type": "object", "required": [name], "properties": {name: references[kind]}}


def page(routes: tuple[Route, ...]) -> bytes:
    """A plain page that lists what can be called; it loads nothing from elsewhere."""
    rows = "".join(
        f"<tr><td>{each.method}</td><td><code>{each.path}</code></td><td>{each.summary}</td>"
        f"<td>{_scopes(each) or '–'}</td></tr>"
        for each in routes
    )
    return _PAGE.format(version=__version__, rows=rows, style=_STYLE).encode()


_STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ddd}
"""
_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
#: What that page may do: look as it should, and nothing else.
POLICY: Headers = (
    *CAUTION,
    (
        b"content-security-policy",
        f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'".encode(),
    ),
    (b"cache-control", b"no-store"),
)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>FlowFabric API</title><style>{style}</style></head>
<body><h1>FlowFabric {version}</h1>
<p>The machine-readable description is <a href="openapi.json">openapi.json</a> (OpenAPI 3.1).</p>
<table><tr><th>Method</th><th>Path</th><th>What it does</th><th>Scope</th></tr>{rows}</table></body></html>
"""
