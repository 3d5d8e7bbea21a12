"""Conditions that a suspended execution waits for; given to ``Engine.suspend`` as ``resume_condition``."""

from flowfabric.model.conditions import (
    AllOf,
    AnyOf,
    ByName,
    Count,
    CountKind,
    Effect,
    Matcher,
    OperatorOnly,
    ResumeCondition,
    Single,
    TimeoutOnly,
    Wildcard,
)
from flowfabric.model.limits import MAX_COMPOSITE_DEPTH

__all__ = [
    "MAX_COMPOSITE_DEPTH",
    "AllOf",
    "AnyOf",
    "ByName",
    "Count",
    "CountKind",
    "Effect",
    "Matcher",
    "OperatorOnly",
    "ResumeCondition",
    "Single",
    "TimeoutOnly",
    "Wildcard",
]
