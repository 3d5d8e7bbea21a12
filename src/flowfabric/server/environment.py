"""Every variable of the environment that a server reads: one table, from which its configuration is read and against
which the guide is checked. The intervals of timers have a table of their own, in ``engine.timers.loop``."""

from __future__ import annotations

from flowfabric.stores.environment import STORE_VARIABLES, Variable

POSTGRES_POOL_SIZE = Variable("FF_POSTGRES_POOL_SIZE", "--pool-size", 10, 1, 10_000)
SQLITE_POOL_SIZE = Variable("FF_SQLITE_POOL_SIZE", "", 4, 1, 10_000)
MIGRATE = Variable("FF_MIGRATE", "--migrate", "apply")
STORE_PATIENCE = Variable("FF_STORE_PATIENCE_S", "--store-patience-s", 60, 0, 3_600)
DEV_MODE = Variable("FF_DEV_MODE", "--single-node")
SECRET = Variable("FF_WAITPOINT_HMAC_SECRET")
GRACE = Variable("FF_WAITPOINT_HMAC_GRACE_MS", "--waitpoint-hmac-grace-ms", 86_400_000)
RECLAIM_GRACE = Variable("FF_RECLAIM_GRACE_MS", "--reclaim-grace-ms", 0)
LISTEN_ADDR = Variable("FF_LISTEN_ADDR", "--listen")
API_TOKEN = Variable("FF_API_TOKEN")
REQUIRE_CREDENTIAL = Variable("FF_REQUIRE_CREDENTIAL", "--require-credential")
ALLOW_UNAUTHENTICATED = Variable("FF_ALLOW_UNAUTHENTICATED", "--allow-unauthenticated")
CORS_ORIGINS = Variable("FF_CORS_ORIGINS", "--cors-origins")
LANES = Variable("FF_LANES", "--lanes", "default")
FLOW_PARTITIONS = Variable("FF_FLOW_PARTITIONS", "--flow-partitions", 256, 1, 65_535)
BUDGET_PARTITIONS = Variable("FF_BUDGET_PARTITIONS", "--budget-partitions", 32, 1, 65_535)
QUOTA_PARTITIONS = Variable("FF_QUOTA_PARTITIONS", "--quota-partitions", 32, 1, 65_535)
STREAM_OPS = Variable("FF_MAX_CONCURRENT_STREAM_OPS", "--max-concurrent-stream-ops", 64, 1, 100_000)
TAIL = Variable("FF_MAX_CONCURRENT_TAIL", "--max-concurrent-stream-ops", 64, 1, 100_000)
FOLLOWERS = Variable("FF_MAX_FOLLOWERS", "--max-followers", 1_000, 1, 1_000_000)
CONNECTIONS = Variable("FF_MAX_CONNECTIONS", "--max-connections", 5_000, 1, 1_000_000)
BODY_BYTES = Variable("FF_MAX_BODY_BYTES", "--max-body-bytes", 67_108_864, 16_777_216, 2**40)
ANSWER_BYTES = Variable("FF_MAX_ANSWER_BYTES", "--max-answer-bytes", 67_108_864, 1_048_576, 2**40)
HEADER_TIMEOUT = Variable("FF_HEADER_TIMEOUT_S", "--header-timeout-s", 10, 0.01, 3_600)
BODY_TIMEOUT = Variable("FF_BODY_TIMEOUT_S", "--body-timeout-s", 60, 0.01, 3_600)
WRITE_TIMEOUT = Variable("FF_WRITE_TIMEOUT_S", "--write-timeout-s", 60, 0.01, 3_600)
KEEP_ALIVE = Variable("FF_KEEP_ALIVE_S", "--keep-alive-s", 75, 1, 3_600)
SHUTDOWN_GRACE = Variable("FF_SHUTDOWN_GRACE_S", "--shutdown-grace-s", 15, 1, 3_600)
RATE_LIMIT = Variable("FF_RATE_LIMIT", "--rate-limit", 0, 0, 1_000_000)
RATE_BURST = Variable("FF_RATE_BURST", "--rate-burst", 0, 0, 10_000_000)
METRICS = Variable("FF_METRICS", "--no-metrics", "1")
CONSOLE = Variable("FF_CONSOLE", "--no-console", "1")
TRACE_URL = Variable("FF_TRACE_URL", "--trace-url")
LOG = Variable("FF_LOG", "--log")
SENTRY_DSN = Variable("FF_SENTRY_DSN")
SENTRY_ENVIRONMENT = Variable("FF_SENTRY_ENVIRONMENT", "--sentry-environment", "production")
SENTRY_RELEASE = Variable("FF_SENTRY_RELEASE", "--sentry-release")

VARIABLES: tuple[Variable, ...] = (
    *STORE_VARIABLES,
    *(each for each in vars().copy().values() if isinstance(each, Variable)),
)
