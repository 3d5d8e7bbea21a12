"""What a status is called. Python's own table changes between versions; answers must not."""

from __future__ import annotations

from http import HTTPStatus

_CHANGED = {
    413: "Request Entity Too Large",
    414: "Request-URI Too Long",
    416: "Requested Range Not Satisfiable",
    422: "Unprocessable Entity",
}
REASONS = {status.value: _CHANGED.get(status.value, status.phrase) for status in HTTPStatus}
