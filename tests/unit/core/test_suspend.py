"""The one way into the suspended phase, as other rules use it: with rows alone, before anything is folded."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from flowfabric.conditions import OperatorOnly
from flowfabric.core.batch.graph_view import Missing
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.suspension.bound_waitpoints import Binding, Wait
from flowfabric.core.suspension.signing import CURRENT_KEY
from flowfabric.core.suspension.suspend import suspended
from flowfabric.model.decisions import Decision, Get
from flowfabric.model.errors import State, StateKind
from flowfabric.model.handles import BackendTag, HandleKind
from flowfabric.model.records.executions import Attempt, Execution, SigningKey, Suspension, Waitpoint
from tests.unit.core.test_invariants import ID, NOW, UUID, execution

CONTEXT = Context(NOW, BackendTag.MEMORY, "memory")
POINT = "11111111-1111-4111-8111-111111111111"
WAIT = Wait("22222222-2222-4222-8222-222222222222", (Binding(POINT, "ask"),), OperatorOnly(), "paused_by_budget")
HELD = Attempt(ID, 0, UUID, 1, "w1", "w1-a", 2, NOW + 5_000, 3_000, attempt_id=POINT, lease_id=POINT)


def loaded(suspension: Suspension | None = None) -> View:
    view = View()
    view.put_selected(CURRENT_KEY, ["k"])
    view.put_loaded(SigningKey, "k", SigningKey("k", b"secret", 1, True))
    view.put_loaded(Waitpoint, (0, POINT), None)
    view.put_loaded(Suspension, (0, UUID), suspension)
    return view


def test_a_held_execution_is_parked() -> None:
    row, view = execution(), loaded()
    parked = suspended(view, CONTEXT, row, HELD, WAIT, b"e" * 32)
    view.fold(Decision(None, parked.acts, parked.events))
    stored = view.get(Execution, ID)
    assert stored is not None
    assert (stored.lifecycle_phase, stored.blocking_reason) == ("suspended", "waiting_for_budget")
    attempt = view.get(Attempt, (ID, 1))
    assert attempt is not None
    assert (attempt.worker_instance_id, attempt.lease_epoch, attempt.outcome) == (None, 3, "attempt_interrupted")
    waitpoint = view.get(Waitpoint, (0, POINT))
    assert waitpoint is not None
    assert (waitpoint.state, waitpoint.token) == ("active", parked.details.waitpoint_token)
    assert view.get(Suspension, (0, UUID)) is not None
    assert [event.event_type for event in parked.events] == ["revoked"]  # type: ignore[union-attr]
    assert (parked.handle.kind, parked.handle.payload.lease_epoch) == (HandleKind.SUSPENDED, 3)
    assert parked.handle.payload.lease_ttl_ms == NOW + 5_000 - 3_000


def test_what_is_missing_is_missed_together() -> None:
    with pytest.raises(Missing) as caught:
        suspended(View(), CONTEXT, execution(), HELD, WAIT, b"e" * 32)
    assert caught.value.needs == (Get(Suspension, (0, UUID)),)


def test_nothing_is_folded_by_a_refusal() -> None:
    view = loaded(Suspension(0, UUID, "s", 1, None, None))
    with pytest.raises(State) as caught:
        suspended(view, CONTEXT, execution(), HELD, WAIT, b"e" * 32)
    assert caught.value.kind is StateKind.ALREADY_SUSPENDED
    assert view.folds == 0
    over = loaded(replace(Suspension(0, UUID, "s", 1, None, None), closed_at_ms=5))
    assert suspended(over, CONTEXT, execution(), HELD, WAIT, b"e" * 32).details.waitpoint_key == "ask"
