"""Floors and goals, and the figures of peers that were recorded once on a machine like the one the floors are for."""

from __future__ import annotations

from bench.rows import Target

#: Engine API against the hand-written limit of the same shape, by store and callers.
LIFECYCLE = {
    ("postgres", 256): Target(0.40, 0.70),
    ("postgres", 1): Target(0.35, 0.60),
    ("sqlite", 256): Target(0.45, 0.70),
    ("valkey", 256): Target(0.25, 0.40),
}
#: Processor time of a lifecycle on Valkey with 256 callers, its log on disk before each answer; and lifecycles per
#: second where the log is on disk within a second, on two cores.
VALKEY_LIFECYCLE_US = {"client": Target(250.0, 150.0, of="value"), "server": Target(160.0, 120.0, of="value")}
VALKEY_EVERYSEC = Target(3_000, 5_000, of="value")
#: Tasks drained by a worker of the SDK against executions drained by the engine alone.
WORKER = Target(0.35, 0.60)
TWO_PROCESSES = Target(1.4, 1.7)
#: pgqueuer's bulk enqueue was 30,861 per second.
BULK = dict.fromkeys(("sqlite", "postgres", "valkey"), Target(15_000, 30_861, of="value"))
PICKUP_P50_MS = Target(6.8, 3.0, of="value")
PICKUP_P99_MS = Target(17.0, 8.0, of="value")
SIGNAL_P50_MS = Target(6.0, 4.0, of="value")
BACKLOG = Target(2.0, 1.2)
MISMATCH = Target(3.0, 1.5)
#: Claims with ten capabilities, and in a lane whose keys take turns, against a plain lane.
ROUTING = Target(4.0, 2.0)
FAIR = Target(1.5, 1.15)
SCARCE_P99_MS = Target(1_000, 250, of="value")
#: Events delivered against events written, and writing with a subscriber in the same process against without.
FOLLOWED = Target(0.95, 0.99)
WRITING_WHILE_FOLLOWED = Target(0.6, 0.8)
#: Nodes of chains against plain lifecycles, a graph against single creations, and losers of a quorum by their number.
FLOW_NODES = Target(0.40, 0.60)
FLOWS_PER_SECOND = {"valkey": Target(75.0, 150.0, of="value")}
FLOW_SUBMIT = Target(3.0, 10.0)
QUORUM_MS = {100: Target(50.0, 20.0, of="value")}

#: Lifecycles of executions that name a budget or a quota against the same without.
NAMED = {"budget": Target(0.75, 0.90), "quota": Target(0.35, 0.60)}

#: Tasks with limits by key against the same without, commits per remembered step, and the time an import takes.
LIMITED = Target(0.80, 0.90)
COMMITS_PER_STEP = Target(1.0, 0.1, of="value")
IMPORT_MS = Target(150.0, 100.0, of="value")

#: Requests with 64 connections against the same calls on the engine, and the 99th part of a hundred against the middle.
HTTP = Target(0.30, 0.50)
HTTP_TAIL = Target(5.0, 3.0, of="value")
#: Processor time of a server with a thousand idle claims and a thousand idle readers, and what each of them takes.
IDLE_CPU = Target(0.05, 0.02, of="value")

#: Workflows of one step per second drained by one and by two workers of each peer, with the multiples asked of us.
WORKFLOW_PEERS = {
    "postgres": {
        "DBOS": ((143, 215), Target(15, 30, enforced=False)),
        "absurd": ((249, 510), Target(8, 15, enforced=False)),
    },
    "sqlite": {"DBOS": ((118, 104), Target(12, 25, enforced=False))},
    "valkey": {},
}
#: Jobs per second drained by one worker of each peer, with the multiples asked of us. Recorded, not measured here.
PEERS = {
    "postgres": {
        "DBOS": (143, Target(15, 30, enforced=False)),
        "absurd": (249, Target(8, 15, enforced=False)),
        "procrastinate": (360, Target(5, 10, enforced=False)),
        "Oban": (1_314, Target(1.5, 3, enforced=False)),
        "pgqueuer": (8_822, Target(0.25, 1, enforced=False)),
    },
    "sqlite": {
        "DBOS": (118, Target(12, 25, enforced=False)),
        "huey": (2_527, Target(0.6, 1.5, enforced=False)),
    },
    "valkey": {},
}
