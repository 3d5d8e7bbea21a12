"""The routes, one module per topic. ``OPERATIONS`` is all of them."""

from flowfabric.server.operations import Operation
from flowfabric.server.routes import (
    admin,
    budgets,
    credentials,
    events,
    executions,
    flows,
    graphs,
    health,
    inspection,
    lanes,
    remote,
    schedules,
    search,
    streams,
    submitting,
    workers,
)

OPERATIONS: tuple[Operation, ...] = (
    *executions.OPERATIONS,
    *submitting.OPERATIONS,
    *inspection.OPERATIONS,
    *streams.OPERATIONS,
    *events.OPERATIONS,
    *flows.OPERATIONS,
    *graphs.OPERATIONS,
    *budgets.OPERATIONS,
    *workers.OPERATIONS,
    *remote.OPERATIONS,
    *lanes.OPERATIONS,
    *search.OPERATIONS,
    *schedules.OPERATIONS,
    *admin.OPERATIONS,
    *credentials.OPERATIONS,
    *health.OPERATIONS,
)
