"""The routes, one module per topic. ``OPERATIONS`` is all of them."""

from flowfabric.server.operations import Operation
from flowfabric.server.routes import executions, health

OPERATIONS: tuple[Operation, ...] = (*executions.OPERATIONS, *health.OPERATIONS)
