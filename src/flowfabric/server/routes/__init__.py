"""The routes, one module per topic. ``ROUTES`` is all of them."""

from flowfabric.server.operations import Route
from flowfabric.server.routes import (
    admin,
    asks,
    budgets,
    credentials,
    execution_detail,
    execution_history,
    executions,
    flow_graphs,
    flows,
    health,
    kinds,
    lanes,
    overview,
    remote,
    schedules,
    search,
    submit,
    workers,
)
from flowfabric.server.routes.live import changes, events, run_events, streams

ROUTES: tuple[Route, ...] = (
    *executions.ROUTES,
    *submit.ROUTES,
    *execution_detail.ROUTES,
    *execution_history.ROUTES,
    *overview.ROUTES,
    *asks.ROUTES,
    *streams.ROUTES,
    *events.ROUTES,
    *run_events.ROUTES,
    *changes.ROUTES,
    *flows.ROUTES,
    *flow_graphs.ROUTES,
    *budgets.ROUTES,
    *workers.ROUTES,
    *remote.ROUTES,
    *lanes.ROUTES,
    *kinds.ROUTES,
    *search.ROUTES,
    *schedules.ROUTES,
    *admin.ROUTES,
    *credentials.ROUTES,
    *health.ROUTES,
)
