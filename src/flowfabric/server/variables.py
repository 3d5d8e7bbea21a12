"""Every variable of the environment that a server reads: one table, from which its configuration is read and against
which the guide is checked. The intervals of timers have a table of their own, in ``engine.timer_loop``."""

from __future__ import annotations

from msgspec import Struct


class Variable(Struct, frozen=True):
    """One variable: the flag that says the same, what it is without, and for numbers the least and the most."""

    name: str
    flag: str = ""
    default: int | float | str | None = None
    least: float | None = None
    most: float | None = None


STORE_URL = Variable("FF_STORE_URL", "--store")
#: The name that the command line has always used.
URL = Variable("FF_URL", "--store")
BACKEND = Variable("FF_BACKEND")
POSTGRES_URL = Variable("FF_POSTGRES_URL")
SQLITE_PATH = Variable("FF_SQLITE_PATH", default=":memory:")
POSTGRES_POOL_SIZE = Variable("FF_POSTGRES_POOL_SIZE", "--pool-size", 10, 1, 10_000)
SQLITE_POOL_SIZE = Variable("FF_SQLITE_POOL_SIZE", "", 4, 1, 10_000)
MIGRATE = Variable("FF_MIGRATE", "--migrate", "apply")
DEV_MODE = Variable("FF_DEV_MODE", "--single-node")
SECRET = Variable("FF_WAITPOINT_HMAC_SECRET")
GRACE = Variable("FF_WAITPOINT_HMAC_GRACE_MS", "", 86_400_000)
RECLAIM_GRACE = Variable("FF_RECLAIM_GRACE_MS", "", 0)
LISTEN_ADDR = Variable("FF_LISTEN_ADDR", "--listen")
API_TOKEN = Variable("FF_API_TOKEN")
REQUIRE_CREDENTIAL = Variable("FF_REQUIRE_CREDENTIAL", "--require-credential")
ALLOW_UNAUTHENTICATED = Variable("FF_ALLOW_UNAUTHENTICATED", "--allow-unauthenticated")
CORS_ORIGINS = Variable("FF_CORS_ORIGINS", "--cors-origins")
LANES = Variable("FF_LANES", "--lanes", "default")
FLOW_PARTITIONS = Variable("FF_FLOW_PARTITIONS", "", 256, 1, 65_535)
BUDGET_PARTITIONS = Variable("FF_BUDGET_PARTITIONS", "", 32, 1, 65_535)
QUOTA_PARTITIONS = Variable("FF_QUOTA_PARTITIONS", "", 32, 1, 65_535)
STREAM_OPS = Variable("FF_MAX_CONCURRENT_STREAM_OPS", "", 64, 1, 100_000)
TAIL = Variable("FF_MAX_CONCURRENT_TAIL", "", 64, 1, 100_000)
FOLLOWERS = Variable("FF_MAX_FOLLOWERS", "", 1_000, 1, 1_000_000)
CONNECTIONS = Variable("FF_MAX_CONNECTIONS", "--max-connections", 5_000, 1, 1_000_000)
BODY_BYTES = Variable("FF_MAX_BODY_BYTES", "", 67_108_864, 16_777_216, 2**40)
HEADER_TIMEOUT = Variable("FF_HEADER_TIMEOUT_S", "", 10, 0.01, 3_600)
BODY_TIMEOUT = Variable("FF_BODY_TIMEOUT_S", "", 60, 0.01, 3_600)
KEEP_ALIVE = Variable("FF_KEEP_ALIVE_S", "", 75, 1, 3_600)
SHUTDOWN_GRACE = Variable("FF_SHUTDOWN_GRACE_S", "", 15, 1, 3_600)
RATE_LIMIT = Variable("FF_RATE_LIMIT", "--rate-limit", 0, 0, 1_000_000)
RATE_BURST = Variable("FF_RATE_BURST", "", 0, 0, 10_000_000)
METRICS = Variable("FF_METRICS", "", "1")
CONSOLE = Variable("FF_CONSOLE", "", "1")
LOG = Variable("FF_LOG", "--log")
SENTRY_DSN = Variable("FF_SENTRY_DSN")
SENTRY_ENVIRONMENT = Variable("FF_SENTRY_ENVIRONMENT", "", "production")
SENTRY_RELEASE = Variable("FF_SENTRY_RELEASE")

VARIABLES: tuple[Variable, ...] = tuple(each for each in vars().copy().values() if isinstance(each, Variable))
