"""Planted bugs of coordination, kept apart from those of single executions."""

from __future__ import annotations

from tests.simulation.mutants.mutating import Patch, around, edited, without_drops, without_events, without_fields

__all__ = ["MUTANTS", "around", "edited", "mutant", "without_drops", "without_events", "without_fields"]

MUTANTS: dict[str, Patch] = {}


def mutant(patch: Patch) -> Patch:
    """Add a planted bug under the name of its function."""
    MUTANTS[patch.__name__] = patch
    return patch
