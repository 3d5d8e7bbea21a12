"""Keeping one sample of every minute, however many servers take them."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.model.decisions import Decision, Get, Need, insert
from flowfabric.model.reads.samples import SAMPLE_MS, Sample, SampleRow

_decoder = msgspec.json.Decoder(Sample)


class RecordSample(Struct, gc=False):
    """This is how it goes."""

    sample: Sample

    def needs(self) -> tuple[Need, ...]:
        # The rule's own clock decides which minute it is; it nearly always agrees.
        return (Get(SampleRow, (minute_of(self.sample.pulse.at_ms),)),)


def record_sample(command: RecordSample, view: View, context: Context) -> Decision:
    """The first sample of a minute stays, and everybody gets it."""
    minute = minute_of(context.now)
    stored = view.get(SampleRow, (minute,))
    known = None if stored is None else read_sample(stored)
    if known is not None:
        return Decision(known)
    at = max(minute, min(command.sample.pulse.at_ms, context.now))
    sample = replace(command.sample, pulse=replace(command.sample.pulse, at_ms=at))
    if stored is not None:
        return Decision(sample)
    return Decision(sample, (insert(SampleRow(minute, msgspec.json.encode(sample).decode())),))


def minute_of(at_ms: int) -> int:
    """The beginning of the stretch that a sample stands for."""
    return at_ms - at_ms % SAMPLE_MS


def read_sample(row: SampleRow) -> Sample | None:
    """What a row tells; ``None`` if its document is nothing that charts can draw, which leaves a gap in them."""
    try:
        return _decoder.decode(row.document)
    except (msgspec.DecodeError, RecursionError):
        return None
