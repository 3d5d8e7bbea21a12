import pytest
from tests.contract.probe import *
from flowfabric import *


async def try_(coro):
    try:
        return await coro
    except EngineError as e:
        return f"ERR {e!r}"
    except BaseException as e:
        return f"RAW {type(e).__name__}: {e}"


async def test_x(engine, probe, clock, capsys):
    out = []
    big = "{fp:65535}:11111111-1111-4111-8111-111111111111"
    out.append(("read big partition", await try_(engine.read_execution_state(big))))
    out.append(("cancel big partition", await try_(engine.cancel_execution(execution_id=big))))
    out.append(("list big", await try_(engine.list_executions(65535))))
    h = await claimed(engine)
    from flowfabric.model.handles import encode, decode
    import msgspec

    tag, p = decode(h.opaque)
    f = Handle(h.backend, h.kind, encode(tag, msgspec.structs.replace(p, attempt_index=2**32 - 1)))
    out.append(("forged idx", await try_(engine.renew(f))))
    f = Handle(h.backend, h.kind, encode(tag, msgspec.structs.replace(p, lease_epoch=2**64 - 1)))
    out.append(("forged epoch", await try_(engine.renew(f))))
    f = Handle(h.backend, h.kind, encode(tag, msgspec.structs.replace(p, lease_ttl_ms=2**64 - 1)))
    out.append(("forged ttl", await try_(engine.renew(f))))
    f = Handle(h.backend, h.kind, encode(tag, msgspec.structs.replace(p, execution_id=big)))
    out.append(("forged id", await try_(engine.complete(f))))
    out.append(("summary nul", await try_(engine.append_frame(h, Frame(b'{"a":"x\\u0000y"}', mode=DurableSummary())))))
    out.append(
        ("summary surrogate", await try_(engine.append_frame(h, Frame(b'{"a":"\\ud800"}', mode=DurableSummary()))))
    )
    out.append(
        (
            "summary bigint",
            await try_(engine.append_frame(h, Frame(b'{"a":123456789012345678901234567890}', mode=DurableSummary()))),
        )
    )
    out.append(("summary bigfloat", await try_(engine.append_frame(h, Frame(b'{"a":1e400}', mode=DurableSummary())))))
    out.append(
        (
            "summary float",
            await try_(
                engine.append_frame(h, Frame(b'{"a":1e300, "b": 1e22, "c": -0.0, "d": 0.1}', mode=DurableSummary()))
            ),
        )
    )
    out.append(("read summary", await try_(engine.read_summary(id_of(h)))))
    out.append(("frame nul", await try_(engine.append_frame(h, Frame(b"a\x00b")))))
    out.append(
        ("tail huge", await try_(engine.tail_stream(id_of(h), 0, At("9223372036854775807-9223372036854775807"))))
    )
    out.append(("tail huge2", await try_(engine.tail_stream(id_of(h), 0, "99999999999999999999999-5"))))
    out.append(
        (
            "read huge",
            await try_(
                engine.read_stream(
                    id_of(h), 0, "99999999999999999999999-5", "99999999999999999999999-99999999999999999999999"
                )
            ),
        )
    )
    for pol in [
        '{"x":"\\u0000"}',
        '{"x": 123456789012345678901234567890}',
        {"x": 10**30},
        '{"x": 1e400}',
        {"routing_requirements": {"isolation_level": "a\x00b"}},
        {"a\x00b": 1},
        {"x": float("nan")},
        {"x": "\ud800"},
        '{"x":"\ud800"}',
        b"\xff",
        5,
        [1],
    ]:
        out.append((f"policy {pol!r}", await try_(engine.create_execution(policy=pol))))
    import secrets

    toks = [secrets.token_hex(16) for _ in range(124)]
    out.append(
        (
            "caps 4096",
            await try_(
                engine.create_execution(
                    lane_id="caps", policy={"routing_requirements": {"required_capabilities": toks}}
                )
            ),
        )
    )
    one = secrets.token_hex(2048)
    out.append(
        (
            "cap one 4096",
            await try_(
                engine.create_execution(
                    lane_id="caps", policy={"routing_requirements": {"required_capabilities": [one]}}
                )
            ),
        )
    )
    out.append(("claim caps", await try_(engine.claim("caps", [one], policy()))))
    out.append(
        ("instance tag long", await try_(engine.create_execution(tags={"cairn.instance_id": secrets.token_hex(30000)})))
    )
    out.append(
        (
            "idem long",
            await try_(
                engine.create_execution(namespace=secrets.token_hex(512), idempotency_key=secrets.token_hex(512))
            ),
        )
    )
    out.append(
        (
            "reg lanes",
            await try_(engine.register_worker(worker_id="w", worker_instance_id="i", lanes=["a,b", "c", "[x"])),
        )
    )
    out.append(("workers", await try_(engine.list_workers(namespace="default"))))
    out.append(("tag filter", await try_(engine.trim_retention(filter=ScannerFilter(instance_tag=('a"b', "x"))))))
    out.append(
        (
            "floor",
            await try_(
                engine.append_frame(
                    h, Frame(b"x", mode=BestEffortLive(ttl_ms=10**30, maxlen_floor=10**30, maxlen_ceiling=10**30))
                )
            ),
        )
    )
    h2 = await claimed(engine, lane_id="l2", policy={"stream_policy": {"retention_maxlen": 2**60}})
    out.append(
        (
            "floor2",
            await try_(
                engine.append_frame(
                    h2, Frame(b"x", mode=BestEffortLive(ttl_ms=10**30, maxlen_floor=10**30, maxlen_ceiling=10**30))
                )
            ),
        )
    )
    out.append(("live bad", await try_(engine.append_frame(h2, Frame(b"x", mode=BestEffortLive(ttl_ms="x"))))))
    out.append(
        (
            "live nan",
            await try_(engine.append_frame(h2, Frame(b"x", mode=BestEffortLive(ttl_ms=5, ema_alpha=float("nan"))))),
        )
    )
    out.append(("not frame", await try_(engine.append_frame(h2, b"x"))))
    out.append(("not handle", await try_(engine.renew("x"))))
    out.append(("claim policy", await try_(engine.claim("x", (), "p"))))
    out.append(("tag key", await try_(engine.get_execution_tag(id_of(h), 5))))
    out.append(("tags", await try_(engine.set_execution_tags(id_of(h), None))))
    out.append(("creates", await try_(engine.create_executions(5))))
    out.append(("creates2", await try_(engine.create_executions([5]))))
    out.append(("lists ns", await try_(engine.list_expired_leases(namespace=5))))
    out.append(("lists ns", await try_(engine.list_expired_leases(namespace="a\x00"))))
    out.append(("workers after", await try_(engine.list_workers(namespace="d", after=5))))
    out.append(("lanes", await try_(engine.register_worker(worker_id="w", worker_instance_id="i", lanes=5))))
    with capsys.disabled():
        print()
        print("#####", engine.backend_label)
        for name, value in out:
            print(f"{name[:60]:40} {str(value)[:250]}")
