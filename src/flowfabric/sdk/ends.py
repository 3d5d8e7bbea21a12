"""How runs end."""

from __future__ import annotations

from collections.abc import Mapping

from flowfabric.model.states import PublicState
from flowfabric.sdk.errors import RunCancelled, RunEnded, RunExpired, RunFailed, RunSkipped

#: The error that says how a run ended which did not succeed.
ENDS: Mapping[PublicState, type[RunEnded]] = {
    PublicState.FAILED: RunFailed,
    PublicState.CANCELLED: RunCancelled,
    PublicState.EXPIRED: RunExpired,
    PublicState.SKIPPED: RunSkipped,
}
#: All the ways to end.
ENDED = frozenset({PublicState.COMPLETED, *ENDS})
