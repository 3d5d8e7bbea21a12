"""Limits and budgets that starts name: each is made known to the engine before a run needs it.

Their ids follow from their names, so that every process means the same one, and creating it twice changes nothing. The
numbers of a limit are those of the code that states them last: an app does so when it first starts a run that names the
limit, and again from time to time, as its workers do, so that those of a release that has ended do not stay.
Those that the code names once and for all are kept for good. Those that come with the values of arguments, or with a
start, are deleted when nothing has used them for long; so an app that goes on using one makes it again from time to
time.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from flowfabric.model.errors import NotFound
from flowfabric.model.limits import GATE_KNOWN_MS
from flowfabric.model.states import SCOPE_NAMED
from flowfabric.sdk.durations import milliseconds
from flowfabric.sdk.options import Budget, Limit, Rate

if TYPE_CHECKING:
    from flowfabric.engine import Engine
    from flowfabric.model.ids import ExecutionId
    from flowfabric.model.operations.budgets import BudgetStatus
    from flowfabric.sdk.app import App
    from flowfabric.sdk.definitions.tasks import Startable

#: Ids made from names are the same in every process.
NAMESPACE: Final = uuid.UUID("6f0d4a86-3f0e-5c5b-9a53-0f2f6c1b7d11")
#: Gates a process remembers having created. Forgetting one costs a call that changes nothing.
MAX_KNOWN: Final = 10_000
_SECOND: Final = timedelta(seconds=1)


def stable_id(*names: str) -> str:
    """The same UUID for the same names, everywhere."""
    return str(uuid.uuid5(NAMESPACE, "\x00".join(names)))


def quota_id(namespace: str, task: str, key: str | None, value: str | None) -> str:
    """The id of a task's quota for one value of its key. Whatever its numbers are, it is the same quota."""
    return stable_id("quota", namespace, task, *([] if key is None else [f"{key}={value}"]))


def stated(namespace: str, definition: Startable[Any, Any], value: str | None, *, kept: bool) -> dict[str, Any]:
    """A task's quota for one value of its key, with the numbers of the code: what ``create_quota_policy`` takes."""
    limits = definition.options.limits
    rate = next((each for each in limits if isinstance(each, Rate)), None)
    return {
        "quota_policy_id": quota_id(namespace, definition.name, limits[0].key, value),
        "window_seconds": 60 if rate is None else rate.per // _SECOND,
        "max_requests_per_window": 0 if rate is None else rate.most,
        "max_concurrent": next((each.most for each in limits if isinstance(each, Limit)), 0),
        "namespace": namespace,
        "kept": kept,
        "update": True,
    }


def budget_id(namespace: str, name: str) -> str:
    """The id of a budget by its name."""
    return stable_id("budget", namespace, name)


async def budget_status(engine: Engine, id: str, run: ExecutionId, namespace: str) -> BudgetStatus:
    """A budget of a run: the one that it means by this id, else its namespace's own, else the operator's."""
    owners = {each.budget_id: each.namespace for each in (await engine.read_history(run)).budgets}
    try:
        return await engine.get_budget_status(id, owners.get(id, namespace))
    except NotFound:
        return await engine.get_budget_status(id)


class Gates:
    """What an app has made known to its engine."""

    def __init__(self, app: App) -> None:
        self._app = app
        #: When each was asked for, and whether it is kept for good.
        self._known: OrderedDict[str, tuple[float, bool]] = OrderedDict()
        #: Seconds that go on while the machine sleeps, as those of the engine do.
        self.clock: Callable[[], float] = time.time

    def _is_known(self, id: str, kept: bool, for_good: bool) -> bool:
        since, stays = self._known.get(id, (0.0, False))
        # Little time, and none backwards: clocks are set right now and then.
        recent = (stays and for_good) or 0 <= self.clock() - since < GATE_KNOWN_MS / 1000
        if id not in self._known or not recent or (kept and not stays):
            return False
        self._known.move_to_end(id)
        return True

    def _learn(self, id: str, kept: bool, since: float) -> None:
        self._known[id] = (since, kept)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    async def quota(self, definition: Startable[Any, Any], arguments: Mapping[str, Any], *, kept: bool = False) -> str:
        """The quota policy of a task for these arguments; it exists when this returns, for good if it is ``kept`` or
        the task has one only, with the numbers of this app."""
        key = definition.options.limits[0].key
        kept = kept or key is None
        value = None if key is None else definition.signature.path(arguments, key)
        quota = stated(self._app.namespace, definition, value, kept=kept)
        id: str = quota["quota_policy_id"]
        if not self._is_known(id, kept, for_good=False):
            since = self.clock()
            await self._app.engine.create_quota_policy(**quota)
            self._learn(id, kept, since)
        return id

    async def budget(self, budget: Budget, *, kept: bool = True) -> str:
        """The engine's id of a budget; it exists when this returns, and so do those above it, for good if they are
        ``kept``."""
        id = budget_id(self._app.namespace, budget.name)
        if not self._is_known(id, kept, for_good=True):
            since = self.clock()
            above = None if budget.under is None else await self.budget(budget.under, kept=kept)
            names = sorted(budget.limits)
            await self._app.engine.create_budget(
                budget_id=id,
                scope_type=SCOPE_NAMED,
                scope_id=budget.name,
                on_hard_limit=budget.on_hard_limit,
                reset_interval_ms=0 if budget.every is None else milliseconds(budget.every),
                dimensions=names,
                hard_limits=[budget.limits[name] for name in names],
                soft_limits=[0] * len(names),
                parent_budget_id=above,
                namespace=self._app.namespace,
                kept=kept,
            )
            self._learn(id, kept, since)
        return id
