"""The OpenAPI document, made from the table of operations and their types."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from flowfabric import __version__
from flowfabric.model.ids import BudgetId, EdgeId, ExecutionId, FlowId, LaneId
from flowfabric.server.answers import variant_name
from flowfabric.server.operations import Operation, Variants
from flowfabric.server.requests import Blob

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
    "properties": {"error": {"type": "string"}, "kind": {"type": "string"}, "retryable": {"type": "boolean"}},
}


def _hook(kind: type) -> dict[str, Any]:
    if kind is Blob:
        return dict(_BLOB)
    if kind in _IDS:
        return dict(_IDS[kind])
    raise NotImplementedError(kind)


def document(operations: tuple[Operation, ...]) -> dict[str, Any]:
    """The whole document."""
    kinds = list(dict.fromkeys(kind for operation in operations for kind in _kinds(operation)))
    shown, schemas = msgspec.json.schema_components(kinds, schema_hook=_hook, ref_template=REFERENCES)
    references = dict(zip(kinds, shown, strict=True))
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, references, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "FlowFabric", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM, **schemas},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _kinds(operation: Operation) -> list[Any]:
    found = [] if operation.body is None else [operation.body]
    for answer in operation.answers.values():
        if isinstance(answer, Variants):
            found += answer.kinds
        elif answer is not None:
            found.append(answer)
    if operation.query is not None:
        found.append(operation.query)
    return found


def _operation(operation: Operation, references: dict[Any, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [*_path(operation), *_query(operation, references, schemas)],
        "responses": {
            str(status): _response(operation, answer, references) for status, answer in operation.answers.items()
        },
    }
    problem = {"content": {"application/json": {"schema": {"$ref": REFERENCES.format(name="Problem")}}}}
    found["responses"]["default"] = {"description": "Refused, and why", **problem}
    if operation.scope is not None:
        found["security"] = [{"token": []}]
        found["description"] = f"Scope: `{operation.scope.value}`."
    if operation.body is not None:
        schema = references[operation.body]
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return found


def _path(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _path_schema(name, operation.owner)}
        for name in _PARAMETER.findall(operation.path)
    ]


_EXECUTION = {"type": "string", "format": "execution-id", "description": "`{fp:7}:` and a UUID, percent-encoded."}
_UUID = {"type": "string", "format": "uuid"}


def _path_schema(name: str, owner: str | None) -> dict[str, Any]:
    if name == "idx":
        return {"type": "integer", "minimum": 0}
    if name == "id":
        return {"execution": _EXECUTION, "flow": _UUID, "budget": _UUID}.get(owner or "", {"type": "string"})
    return {"type": "string"}


def _query(operation: Operation, references: dict[Any, Any], schemas: dict[str, Any]) -> list[dict[str, Any]]:
    if operation.query is None:
        return []
    schema = references[operation.query]
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": each}
        for name, each in schema["properties"].items()
    ]


def _response(operation: Operation, answer: Any, references: dict[Any, Any]) -> dict[str, Any]:
    if answer is None:
        if operation.media == "application/json":
            return {"description": "Nothing"}
        return {"description": operation.summary, "content": {operation.media: {"schema": {"type": "string"}}}}
    schema = references[answer] if not isinstance(answer, Variants) else _variants(answer, references)
    return {"description": operation.summary, "content": {operation.media: {"schema": schema}}}


def _variants(answer: Variants, references: dict[Any, Any]) -> dict[str, Any]:
    shown = [_variant(kind, references) for kind in answer.kinds]
    return shown[0] if len(shown) == 1 else {"oneOf": shown}


def _variant(kind: Any, references: dict[Any, Any]) -> dict[str, Any]:
    name = variant_name(kind)
    if not kind.__struct_fields__:
        return {"type": "string", "const": name}
    return {"type": "object", "required": [name], "properties": {name: references[kind]}}


def page(operations: tuple[Operation, ...]) -> bytes:
    """A plain page that lists what can be called; it loads nothing from elsewhere."""
    rows = "".join(
        f"<tr><td>{each.method}</td><td><code>{each.path}</code></td><td>{each.summary}</td>"
        f"<td>{each.scope.value if each.scope else '–'}</td></tr>"
        for each in operations
    )
    return _PAGE.format(version=__version__, rows=rows).encode()


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>FlowFabric API</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}}
table{{border-collapse:collapse;width:100%}}td,th{{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ddd}}
</style></head><body><h1>FlowFabric {version}</h1>
<p>The machine-readable description is <a href="openapi.json">openapi.json</a> (OpenAPI 3.1).</p>
<table><tr><th>Method</th><th>Path</th><th>What it does</th><th>Scope</th></tr>{rows}</table></body></html>
"""
