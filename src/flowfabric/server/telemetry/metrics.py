"""Metrics of a server: requests, its engine's work, and how much is stored."""

from __future__ import annotations

from flowfabric.telemetry.engine_metrics import EngineMetrics
from flowfabric.telemetry.gauges import StoreGauges
from flowfabric.telemetry.metrics import Counter, Histogram, Registry

#: Routes, methods and statuses that are told apart.
MAX_ROUTES = 240


class ServerMetrics(Registry):
    """Everything this process counts."""

    def __init__(self) -> None:
        labels = ("method", "path", "status")
        self.requests = Counter("ff_http_requests_total", "Requests by route and status.", labels, MAX_ROUTES)
        self.durations = Histogram("ff_http_request_duration_seconds", "Duration of requests.", labels, MAX_ROUTES)
        self.limited = Counter("ff_http_limited_total", "Requests and connections refused.", ("limit",), 6)
        self.shutdown_timeouts = Counter("ff_shutdown_timeout_total", "Shutdowns that exceeded their grace period.")
        self.engine = EngineMetrics()
        self.store = StoreGauges(self.engine.lanes)
        http = (self.requests, self.durations, self.limited, self.shutdown_timeouts)
        super().__init__(http, self.engine, self.store)
