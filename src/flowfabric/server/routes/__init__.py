"""The routes, one module per topic. ``OPERATIONS`` is all of them."""

from flowfabric.server.operations import Operation
from flowfabric.server.routes import admin, budgets, executions, flows, health, streams, workers

OPERATIONS: tuple[Operation, ...] = (
    *executions.OPERATIONS,
    *streams.OPERATIONS,
    *flows.OPERATIONS,
    *budgets.OPERATIONS,
    *workers.OPERATIONS,
    *admin.OPERATIONS,
    *health.OPERATIONS,
)
