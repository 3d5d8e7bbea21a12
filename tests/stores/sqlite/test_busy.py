"""A SQLite file that somebody else keeps locked: also reads say so as the engine does."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NoReturn

import pytest

from flowfabric.engine import Engine
from flowfabric.model.errors import Contention, ContentionKind
from flowfabric.stores.questions import TrimHistory


class _Locked:
    def execute(self, *_: object) -> NoReturn:
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error

    in_transaction = False

    def close(self) -> None:
        pass


async def test_reads_of_a_locked_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await Engine.open(f"sqlite:///{tmp_path}/ff.db", single_node=True) as engine:
        made = await engine.create_execution()
        with monkeypatch.context() as patch:
            patch.setattr(engine.store, "_reader", _Locked())
            for call in (
                engine.read_execution_info(made.execution_id),
                engine.search_executions(),
                engine.ping(),
            ):
                with pytest.raises(Contention) as caught:
                    await call
                assert caught.value.kind is ContentionKind.RETRY_EXHAUSTED
                assert caught.value.retryable
        with monkeypatch.context() as patch:
            patch.setattr(engine.store, "_data_version", _Locked().execute)
            with pytest.raises(Contention):
                await engine._ask(TrimHistory(0, 0, 0, 100))
