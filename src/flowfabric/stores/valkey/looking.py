"""Reading for questions, which nothing is decided upon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowfabric.model.decisions import Key
from flowfabric.model.errors import Validation
from flowfabric.stores.keyed.reads import LARGEST_CHUNK, Range, Request
from flowfabric.stores.questions import CountRows, OddEnds
from flowfabric.stores.valkey.connection import Connection
from flowfabric.stores.valkey.keys import Keys
from flowfabric.stores.valkey.read import ABSENT, Reader, Seen

#: Records that are remembered when the next entries are asked for: enough for what was read ahead, with attempts.
MOST_SEEN = 4 * LARGEST_CHUNK
#: Questions that leave out what cannot be read: their callers hear of it in another way.
_OF_THE_READABLE = (CountRows, OddEnds)


class Looker(Reader):
    """Reads for one question, whatever it is about, in bounded memory: there is no commit that would check anything, so
    what was seen may be forgotten, and is read again if it is needed again."""

    def __init__(self, connection: Connection, keys: Keys, store_id: bytes, question: Any) -> None:
        super().__init__(connection, keys, store_id)
        self._leaves_out = isinstance(question, _OF_THE_READABLE)

    async def _ask(self, requests: Sequence[Request]) -> list[Any]:
        for checks in (self.strict, self.ranges, self.counts):
            checks.clear()
        # A chunk is done with when the next one is asked for. Until then its records have to stay as they were judged.
        if len(self.seen) > MOST_SEEN and any(type(each) is Range for each in requests):
            self.seen.clear()
        return await super()._ask(requests)

    def _see(self, kind: Any, key: Key, value: bytes | None) -> Seen:
        try:
            return super()._see(kind, key, value)
        except Validation:
            if not self._leaves_out:
                raise
            return self.seen.setdefault((kind, key), Seen(None, ABSENT))
