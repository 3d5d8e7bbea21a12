"""What the environment may say, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from cyclopts import CycloptsError

from flowfabric.engine.timers.loop import TIMERS
from flowfabric.model.partitions import PartitionCounts
from flowfabric.server.config import ServerConfig
from flowfabric.server.environment import VARIABLES
from flowfabric.stores.environment import ConfigError
from flowfabric.stores.valkey.address import parse

GOOD = {"FF_STORE_URL": "memory://", "FF_WAITPOINT_HMAC_SECRET": "ab" * 32}
VALKEY = {"FF_STORE_URL": None, "FF_BACKEND": "valkey"}


def read(**changes: str | None) -> ServerConfig:
    environment = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    return ServerConfig.from_environment(environment)


def test_defaults() -> None:
    config = read()
    assert (config.host, config.port) == ("127.0.0.1", 9090)
    assert config.api_token is None
    assert config.cors_origins is None
    assert config.lanes == ("default",)
    assert config.partitions is None
    assert config.max_stream_ops == 64


def test_a_credential_opens_the_address() -> None:
    assert read(FF_API_TOKEN="token-of-this-test").host == "0.0.0.0"
    assert read(FF_API_TOKEN="").host == "127.0.0.1"
    assert read(FF_API_TOKEN="token-of-this-test", FF_LISTEN_ADDR="127.0.0.1:80").port == 80
    assert read(FF_LISTEN_ADDR="[::1]:81").host == "::1"
    assert read(FF_LISTEN_ADDR="0.0.0.0:1", FF_ALLOW_UNAUTHENTICATED="true").host == "0.0.0.0"


def test_lists() -> None:
    assert read(FF_LANES="a, b,").lanes == ("a", "b")
    assert read(FF_CORS_ORIGINS="https://a.example, https://b.example").cors_origins == (
        "https://a.example",
        "https://b.example",
    )
    assert read(FF_CORS_ORIGINS="https://a.example,*", FF_API_TOKEN="t" * 32).cors_origins == ("*",)
    assert read(FF_CORS_ORIGINS="*", FF_REQUIRE_CREDENTIAL="1").cors_origins == ("*",)


def test_the_new_name_goes_before_the_old() -> None:
    assert read(FF_MAX_CONCURRENT_TAIL="3").max_stream_ops == 3
    assert read(FF_MAX_CONCURRENT_TAIL="3", FF_MAX_CONCURRENT_STREAM_OPS="4").max_stream_ops == 4


def test_the_store_by_its_family() -> None:
    assert read(FF_STORE_URL=None, FF_BACKEND="Postgres", FF_POSTGRES_URL="postgresql://h/d").store_url == (
        "postgresql://h/d"
    )
    assert read(FF_STORE_URL=None, FF_BACKEND="sqlite", FF_SQLITE_PATH="x.db").store_url == "sqlite:///x.db"


@pytest.mark.parametrize(
    ("changes", "url"),
    [
        ({}, "valkey://localhost:6379"),
        ({"FF_HOST": "", "FF_PORT": "", "FF_TLS": "", "FF_CLUSTER": ""}, "valkey://localhost:6379"),
        ({"FF_HOST": "cache.example.com", "FF_PORT": "7000"}, "valkey://cache.example.com:7000"),
        ({"FF_HOST": "::1"}, "valkey://[::1]:6379"),
        ({"FF_HOST": "[fe80::1]"}, "valkey://[fe80::1]:6379"),
        ({"FF_TLS": "True", "FF_CLUSTER": "false"}, "valkeys://localhost:6379"),
        ({"FF_TLS": "0", "FF_CLUSTER": "0"}, "valkey://localhost:6379"),
    ],
)
def test_valkey_by_its_host(changes: dict[str, str], url: str) -> None:
    assert read(FF_STORE_URL=None, FF_BACKEND="Valkey", **changes).store_url == url
    assert parse(url).tls is url.startswith("valkeys:")


def test_an_address_goes_before_the_host() -> None:
    url = "valkey://user:pass@cache:7000/1?prefix=shop&durability=always"
    assert read(FF_STORE_URL=url, FF_BACKEND="valkey", FF_HOST="elsewhere").store_url == url
    assert "user:pass" not in repr(read(FF_STORE_URL=url))


def test_what_is_said_of_valkey_counts_only_there() -> None:
    assert read(FF_CLUSTER="true", FF_HOST="a b", FF_PORT="x", FF_TLS="?").store_url == "memory://"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"FF_WAITPOINT_HMAC_SECRET": None}, "FF_WAITPOINT_HMAC_SECRET is not set"),
        ({"FF_WAITPOINT_HMAC_SECRET": ""}, "FF_WAITPOINT_HMAC_SECRET is not set"),
        ({"FF_WAITPOINT_HMAC_SECRET": "abc"}, "at least 64: set it to those that `openssl rand -hex 32` prints"),
        ({"FF_WAITPOINT_HMAC_SECRET": "00"}, "hexadecimal digits, at least 64"),
        ({"FF_WAITPOINT_HMAC_SECRET": "ab" * 31}, "hexadecimal digits, at least 64"),
        ({"FF_WAITPOINT_HMAC_SECRET": "zz" * 32}, "hexadecimal digits, at least 64"),
        ({"FF_WAITPOINT_HMAC_SECRET": "ab" * 32 + "c"}, "an even number"),
        ({"FF_API_TOKEN": "a"}, "at least 16 characters, for example those that `openssl rand -hex 32` prints"),
        ({"FF_API_TOKEN": "a" * 15}, "at least 16"),
        ({"FF_TRACE_URL": "https://traces.example/"}, "{trace_id} stands for the trace"),
        ({"FF_TRACE_URL": "javascript:alert('{trace_id}')"}, "FF_TRACE_URL"),
        ({"FF_CORS_ORIGINS": ""}, "FF_CORS_ORIGINS is empty"),
        ({"FF_CORS_ORIGINS": " , "}, "FF_CORS_ORIGINS is empty"),
        ({"FF_CORS_ORIGINS": "*"}, "name the origins"),
        ({"FF_CORS_ORIGINS": "*", "FF_ALLOW_UNAUTHENTICATED": "1"}, "set FF_API_TOKEN"),
        ({"FF_CORS_ORIGINS": "ä\n"}, "none of its origins"),
        ({"FF_LANES": " ,"}, "FF_LANES names no lane"),
        ({"FF_LANES": "a,a"}, "twice"),
        ({"FF_LANES": "ä"}, "printable"),
        ({"FF_FLOW_PARTITIONS": "0"}, "FF_FLOW_PARTITIONS=0"),
        ({"FF_BUDGET_PARTITIONS": "65536"}, "from 1 to 65535"),
        ({"FF_QUOTA_PARTITIONS": "x"}, "FF_QUOTA_PARTITIONS=x"),
        ({"FF_MAX_CONCURRENT_STREAM_OPS": "0"}, "FF_MAX_CONCURRENT_STREAM_OPS"),
        ({"FF_POSTGRES_POOL_SIZE": "0"}, "FF_POSTGRES_POOL_SIZE"),
        ({"FF_STORE_URL": None, "FF_BACKEND": "sqlite", "FF_SQLITE_POOL_SIZE": "0"}, "FF_SQLITE_POOL_SIZE"),
        ({"FF_LISTEN_ADDR": "0.0.0.0:9090"}, "set FF_API_TOKEN"),
        ({"FF_LISTEN_ADDR": ":9090"}, "set FF_API_TOKEN"),
        ({"FF_LISTEN_ADDR": "nowhere"}, "FF_LISTEN_ADDR=nowhere"),
        ({"FF_STORE_URL": None}, "set FF_STORE_URL"),
        ({"FF_STORE_URL": None, "FF_BACKEND": "oracle"}, "expected 'valkey', 'postgres', or 'sqlite'"),
        ({"FF_STORE_URL": None}, "valkey://host:port"),
        ({**VALKEY, "FF_CLUSTER": "true"}, "FF_CLUSTER=true: a store uses one Valkey primary with its replicas"),
        ({"FF_STORE_URL": "valkeys://h", "FF_CLUSTER": "1"}, "unset FF_CLUSTER and name that primary"),
        ({**VALKEY, "FF_CLUSTER": "yes"}, "FF_CLUSTER=yes: expected true or false"),
        ({**VALKEY, "FF_TLS": "on"}, "FF_TLS=on: expected true or false"),
        ({**VALKEY, "FF_PORT": "0"}, "FF_PORT=0"),
        ({**VALKEY, "FF_PORT": "65536"}, "from 1 to 65535"),
        ({**VALKEY, "FF_PORT": "x"}, "FF_PORT=x"),
        ({**VALKEY, "FF_HOST": "valkey://cache"}, "into FF_STORE_URL"),
        ({**VALKEY, "FF_HOST": "cache:7000"}, "FF_HOST: expected a name"),
        ({**VALKEY, "FF_HOST": "cache/1?prefix=x"}, "FF_HOST: expected a name"),
        ({"FF_STORE_URL": None, "FF_BACKEND": "postgres"}, "FF_POSTGRES_URL"),
        ({"FF_STORE_PATIENCE_S": "-1"}, "FF_STORE_PATIENCE_S=-1"),
        ({"FF_MIGRATE": "never"}, "FF_MIGRATE=never"),
        ({"FF_LOG": "loud"}, "FF_LOG"),
        ({"FF_RATE_LIMIT": "many"}, "FF_RATE_LIMIT=many"),
        ({"FF_RATE_LIMIT": "nan"}, "FF_RATE_LIMIT=nan"),
        ({"FF_MAX_CONNECTIONS": "0"}, "FF_MAX_CONNECTIONS=0"),
        ({"FF_MAX_CONNECTIONS": "1.5"}, "whole number"),
        ({"FF_HEADER_TIMEOUT_S": "0"}, "FF_HEADER_TIMEOUT_S=0"),
        ({"FF_WRITE_TIMEOUT_S": "0"}, "FF_WRITE_TIMEOUT_S=0"),
        ({"FF_MAX_ANSWER_BYTES": "1"}, "FF_MAX_ANSWER_BYTES=1"),
        ({"FF_SHUTDOWN_GRACE_S": "x"}, "FF_SHUTDOWN_GRACE_S=x"),
    ],
)
def test_refusals(changes: dict[str, str | None], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read(**changes)


def test_a_password_in_the_wrong_place_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match="into FF_STORE_URL") as caught:
        read(**VALKEY, FF_HOST="user:canary@cache")
    assert "canary" not in str(caught.value)


def test_one_name_for_the_store_serves_servers_and_commands() -> None:
    assert read(FF_STORE_URL=None, FF_URL="memory://").store_url == "memory://"
    assert read(FF_STORE_URL="sqlite:///a.db", FF_URL="memory://").store_url == "sqlite:///a.db"


def test_limits_and_times() -> None:
    config = read(FF_RATE_LIMIT="10", FF_HEADER_TIMEOUT_S="0.5", FF_SHUTDOWN_GRACE_S="3", FF_MAX_CONNECTIONS="7")
    assert (config.rate_limit, config.rate_burst) == (10, 20)
    assert (config.header_timeout_s, config.grace_ms, config.max_connections) == (0.5, 3_000, 7)
    assert read(FF_RATE_LIMIT="10", FF_RATE_BURST="50").rate_burst == 50
    assert read(FF_FLOW_PARTITIONS="16").partitions == PartitionCounts(16, 32, 32)


#: What the reference of this system reads.
REFERENCE = """
    FF_WAITPOINT_HMAC_SECRET FF_WAITPOINT_HMAC_GRACE_MS FF_BACKEND FF_POSTGRES_URL FF_POSTGRES_POOL_SIZE FF_SQLITE_PATH
    FF_SQLITE_POOL_SIZE FF_DEV_MODE FF_RECLAIM_GRACE_MS FF_LISTEN_ADDR FF_API_TOKEN FF_CORS_ORIGINS FF_LANES
    FF_FLOW_PARTITIONS FF_BUDGET_PARTITIONS FF_QUOTA_PARTITIONS FF_MAX_CONCURRENT_STREAM_OPS FF_MAX_CONCURRENT_TAIL
    FF_SENTRY_DSN FF_SENTRY_ENVIRONMENT FF_SENTRY_RELEASE FF_LOG FF_GRANT_SWEEP_INTERVAL_MS FF_INTAKE_INTERVAL_MS
    FF_LEASE_EXPIRY_INTERVAL_MS FF_DELAYED_PROMOTER_INTERVAL_MS FF_INDEX_RECONCILER_INTERVAL_S
    FF_ATTEMPT_TIMEOUT_INTERVAL_S FF_SUSPENSION_TIMEOUT_INTERVAL_S FF_PENDING_WP_EXPIRY_INTERVAL_S
    FF_RETENTION_TRIMMER_INTERVAL_S FF_BUDGET_RESET_INTERVAL_S FF_BUDGET_RECONCILER_INTERVAL_S
    FF_QUOTA_RECONCILER_INTERVAL_S FF_UNBLOCK_INTERVAL_S FF_DEPENDENCY_RECONCILER_INTERVAL_S
    FF_FLOW_PROJECTOR_INTERVAL_S FF_EXECUTION_DEADLINE_INTERVAL_S FF_CANCEL_RECONCILER_INTERVAL_S
    FF_EDGE_CANCEL_DISPATCHER_INTERVAL_S FF_EDGE_CANCEL_RECONCILER_INTERVAL_S FF_HOST FF_PORT FF_TLS FF_CLUSTER
"""


def test_every_variable_of_the_reference_is_read() -> None:
    known = {each.name for each in VARIABLES} | {timer.variable for timer in TIMERS}
    assert set(REFERENCE.split()) <= known


def test_the_guide_has_one_table_of_all_of_them() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    section = guide.split("## Configuration")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `FF_")]
    named = [name for row in rows for name in re.findall(r"FF_[A-Z_]+", row.split("|")[1])]
    assert sorted(named) == sorted(each.name for each in VARIABLES)
    flags = {
        name: row.split("|")[2].strip().strip("`")
        for row in rows
        for name in re.findall(r"FF_[A-Z_]+", row.split("|")[1])
    }
    assert flags == {each.name: each.flag for each in VARIABLES}


#: Secrets, and what ``--store`` says; the last one has no effect.
WITHOUT_FLAG = """
    FF_WAITPOINT_HMAC_SECRET FF_API_TOKEN FF_SENTRY_DSN FF_BACKEND FF_POSTGRES_URL FF_SQLITE_PATH FF_HOST FF_PORT
    FF_TLS FF_CLUSTER FF_SQLITE_POOL_SIZE
"""


SWITCHES = ["--single-node", "--require-credential", "--allow-unauthenticated", "--no-metrics", "--no-console"]


def flags_of(*arguments: str) -> dict[str, Any]:
    """What the command line takes these for."""
    from flowfabric.cli.application import loaded

    _, bound, _ = loaded().parse_args(["server", *arguments], exit_on_error=False, print_error=False)
    return dict(bound.arguments)


def test_every_variable_has_a_flag_that_the_command_takes() -> None:
    assert {each.name for each in VARIABLES if not each.flag} == set(WITHOUT_FLAG.split())
    for each in VARIABLES:
        if not each.flag:
            continue
        given = flags_of(each.flag) if each.flag in SWITCHES else flags_of(each.flag, "7")
        assert len(given) == 1, each.flag
    with pytest.raises(CycloptsError):
        flags_of("--no-such-flag", "7")


def test_flags_go_before_the_environment() -> None:
    given = flags_of(
        "--flow-partitions", "16", "--header-timeout-s", "0.5", "--keep-alive-s", "9", "--shutdown-grace-s", "3",
        "--max-followers", "5", "--max-body-bytes", "20000000", "--rate-burst", "4", "--body-timeout-s", "6",
        "--max-concurrent-stream-ops", "8", "--no-metrics", "--no-console", "--sentry-release", "1.2",
        "--write-timeout-s", "2.5", "--max-answer-bytes", "2000000",
    )  # fmt: skip
    environment = {**GOOD, "FF_KEEP_ALIVE_S": "1", "FF_BUDGET_PARTITIONS": "8", "FF_MAX_CONCURRENT_TAIL": "3"}
    config = ServerConfig.from_environment(given["tuning"].over(environment))
    assert config.partitions == PartitionCounts(16, 8, 32)
    assert (config.header_timeout_s, config.body_timeout_s, config.keep_alive_s) == (0.5, 6, 9)
    assert (config.grace_ms, config.max_followers, config.max_body_bytes) == (3_000, 5, 20_000_000)
    assert (config.write_timeout_s, config.max_answer_bytes) == (2.5, 2_000_000)
    assert (config.rate_burst, config.max_stream_ops, config.sentry_release) == (4, 8, "1.2")
    assert not config.metrics
    assert not config.console
    more = flags_of("--reclaim-grace-ms", "7", "--waitpoint-hmac-grace-ms", "8")["tuning"]
    assert more.over({}) == {"FF_RECLAIM_GRACE_MS": "7", "FF_WAITPOINT_HMAC_GRACE_MS": "8"}


def test_a_variable_without_effect_is_told_of() -> None:
    [notice] = read(FF_SQLITE_POOL_SIZE="4").notices
    assert "FF_SQLITE_POOL_SIZE=4 has no effect" in notice
    assert read().notices == ()
