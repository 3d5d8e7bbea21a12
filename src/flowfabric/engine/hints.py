"""Hints to other processes after a commit: lanes with new work, streams that grew, events that were written.

A hint says where to look, nothing more. Losing one costs latency, never work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowfabric.engine.waiters import stream_bucket
from flowfabric.model.events import CompletionEvent, InstanceTagEvent, LeaseEvent, OperatorEvent, SignalEvent
from flowfabric.model.operations.access import Credential

#: What topics begin with.
LANE = "lane:"
STREAM = "stream:"
EVENTS = "events:"
CREDENTIALS = "credentials"
#: Sent by the database itself with the transaction that leaves a request.
ENQUEUE = "enqueue"
#: One letter for each kind of event, so that a commit with several is one hint.
_LETTERS: Mapping[Any, str] = {
    CompletionEvent: "c",
    LeaseEvent: "l",
    OperatorEvent: "o",
    SignalEvent: "s",
    InstanceTagEvent: "t",
}
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}


def urgent_topics(lanes: Iterable[str], streams: Iterable[tuple[str, int]], written: Iterable[Any]) -> set[str]:
    """Topics that somebody may wait for at this moment; ``written`` are the kinds of records of the commit."""
    topics = {LANE + lane_id for lane_id in lanes}
    topics.update({f"{STREAM}{stream_bucket(stream)}" for stream in streams})
    if Credential in written:
        topics.add(CREDENTIALS)
    return topics


def event_topic(kinds: Iterable[Any]) -> str:
    """The topic of a commit that wrote events of these kinds."""
    return EVENTS + "".join(sorted(_LETTERS[kind] for kind in kinds))


def event_kinds(topic: str) -> list[Any]:
    """The kinds of events that such a topic tells of, as far as this release knows them."""
    return [_KINDS[letter] for letter in topic[len(EVENTS) :] if letter in _KINDS]
