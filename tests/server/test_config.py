"""What the environment may say, and what is refused."""

from __future__ import annotations

import pytest

from flowfabric.server.config import ConfigError, ServerConfig

GOOD = {"FF_STORE_URL": "memory://", "FF_WAITPOINT_HMAC_SECRET": "ab" * 32}


def read(**changes: str | None) -> ServerConfig:
    environment = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    return ServerConfig.from_environment(environment)


def test_defaults() -> None:
    config = read()
    assert (config.host, config.port) == ("127.0.0.1", 9090)
    assert config.api_token is None
    assert config.cors_origins is None
    assert config.lanes == ("default",)
    assert (config.partitions.flow, config.partitions.budget, config.partitions.quota) == (256, 32, 32)
    assert config.max_stream_ops == 64


def test_a_credential_opens_the_address() -> None:
    assert read(FF_API_TOKEN="t").host == "0.0.0.0"
    assert read(FF_API_TOKEN="").host == "127.0.0.1"
    assert read(FF_API_TOKEN="t", FF_LISTEN_ADDR="127.0.0.1:80").port == 80
    assert read(FF_LISTEN_ADDR="[::1]:81").host == "::1"
    assert read(FF_LISTEN_ADDR="0.0.0.0:1", FF_ALLOW_UNAUTHENTICATED="true").host == "0.0.0.0"


def test_lists() -> None:
    assert read(FF_LANES="a, b,").lanes == ("a", "b")
    assert read(FF_CORS_ORIGINS="https://a.example, https://b.example").cors_origins == (
        "https://a.example",
        "https://b.example",
    )
    assert read(FF_CORS_ORIGINS="https://a.example,*").cors_origins == ("*",)


def test_the_new_name_goes_before_the_old() -> None:
    assert read(FF_MAX_CONCURRENT_TAIL="3").max_stream_ops == 3
    assert read(FF_MAX_CONCURRENT_TAIL="3", FF_MAX_CONCURRENT_STREAM_OPS="4").max_stream_ops == 4


def test_the_store_by_its_family() -> None:
    assert read(FF_STORE_URL=None, FF_BACKEND="Postgres", FF_POSTGRES_URL="postgresql://h/d").store_url == (
        "postgresql://h/d"
    )
    assert read(FF_STORE_URL=None, FF_BACKEND="sqlite", FF_SQLITE_PATH="x.db").store_url == "sqlite:///x.db"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"FF_WAITPOINT_HMAC_SECRET": None}, "FF_WAITPOINT_HMAC_SECRET is not set"),
        ({"FF_WAITPOINT_HMAC_SECRET": ""}, "FF_WAITPOINT_HMAC_SECRET is not set"),
        ({"FF_WAITPOINT_HMAC_SECRET": "abc"}, "even number of hexadecimal"),
        ({"FF_WAITPOINT_HMAC_SECRET": "zz"}, "even number of hexadecimal"),
        ({"FF_CORS_ORIGINS": ""}, "FF_CORS_ORIGINS is empty"),
        ({"FF_CORS_ORIGINS": " , "}, "FF_CORS_ORIGINS is empty"),
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
        ({"FF_STORE_URL": None, "FF_BACKEND": "valkey"}, "no Valkey store"),
        ({"FF_STORE_URL": None, "FF_BACKEND": "postgres"}, "FF_POSTGRES_URL"),
    ],
)
def test_refusals(changes: dict[str, str | None], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read(**changes)
