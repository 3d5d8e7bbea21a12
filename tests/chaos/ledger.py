"""What killed processes were told, held against what the store says now."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.chaos.stored import Stored

#: What a hand may be told while others work beside it and leases are short.
EXPECTED_REFUSALS = {
    ("Contention", "lease_conflict"),
    ("Contention", "execution_not_active"),
    ("State", "lease_expired"),
}
#: What it may be told besides while the server is away.
EXPECTED_LOSSES = {("Transport", "transport"), ("Contention", "retry_exhausted")}


class Ledger:
    """All answers that were ever acknowledged to a writer of one store."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def read(self, journal: Path) -> int:
        """Take over a dead writer's journal; how many lines. A last line without its end was never written."""
        text = journal.read_text() if journal.exists() else ""
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        self.lines += lines
        return len(lines)

    def about(self, *what: str) -> Iterator[dict[str, Any]]:
        """The answers of some kinds."""
        return (line for line in self.lines if line["what"] in what)

    def acknowledged(self) -> Counter[str]:
        """How many answers there were of each kind."""
        return Counter(line["what"] for line in self.lines)

    def unexpected(self, *, server_killed: bool) -> list[dict[str, Any]]:
        """Errors that nobody can explain."""
        expected = EXPECTED_REFUSALS | (EXPECTED_LOSSES if server_killed else set())
        return [
            line
            for line in self.about("refused", "lost")
            if (line["family"], line["code"]) not in expected
            # Cancelling what has ended is refused as it should be.
            and (line.get("act"), line["code"]) != ("_cancel_known", "invalid_input")
        ]

    def losses(self, stored: Stored) -> list[str]:
        """Every acknowledged answer the store contradicts."""
        found = [f"granted twice: {each}" for each in self._granted_twice()]
        keys: dict[str, str] = dict(stored.bindings)
        for line in self.lines:
            problem = _problem(line, stored)
            if problem:
                found.append(f"{line}: {problem}")
            key = line.get("key")
            if key is not None and keys.get(key) != line["id"]:
                found.append(f"{line}: the key is bound to {keys.get(key)}")
        return found

    def _granted_twice(self) -> list[tuple[str, int]]:
        granted = Counter((line["id"], line["epoch"]) for line in self.about("claimed"))
        return [lease for lease, times in granted.items() if times > 1]


def _problem(line: dict[str, Any], stored: Stored) -> str | None:
    """Why an answer cannot have been true."""
    identity = line.get("id")
    if identity is None:
        return None
    row = stored.executions.get(identity)
    if row is None:
        return None if line["what"] == "creating" else "the execution is gone"
    lease = (line.get("index"), line.get("epoch"))
    attempt = stored.attempts[identity].get(line.get("index", -1), {})
    events = stored.leases[identity]
    match line["what"]:
        case "claimed":
            return None if ("acquired", *lease) in events else f"no such lease in {events}"
        case "renewed":
            return None if ("renewed", *lease) in events else f"no such renewal in {events}"
        case "appended":
            frame = stored.frames[identity].get((line["index"], line["frame"]))
            return None if frame == line["text"] else f"the frame is {frame!r}"
        case "completed":
            # That the result is the one of this epoch is checked for every row.
            ended = (row["public_state"], attempt.get("outcome"), attempt.get("lease_epoch"))
            return None if ended == ("completed", "success", line["epoch"]) else f"it is {ended}"
        case "failed":
            ended = (row["public_state"], attempt.get("outcome"))
            return None if ended == ("failed", "failed") else f"it is {ended}"
        case "retried":
            went_on = attempt.get("outcome") == "retry" and row["attempt_index"] > line["index"]
            return None if went_on and ("revoked", *lease) in events else f"attempt {attempt}, events {events}"
        case "cancelled":
            return None if row["public_state"] == "cancelled" else f"it is {row['public_state']}"
    return None
