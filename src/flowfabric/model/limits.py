"""Every limit has a name; reaching it is an error with a code."""

from __future__ import annotations

from typing import Final

#: Bytes of one execution's input or result.
MAX_PAYLOAD_BYTES: Final = 1_048_576
#: Commands one transaction may carry, and commands that may wait for one.
MAX_BATCH: Final = 256
MAX_QUEUE: Final = 10_000
#: How long an execution is offered, in milliseconds, while every worker that is there has declined it, and while some
#: worker has not been asked; and the longest pause before it is offered again.
DECLINED_MS: Final = 600_000
DECLINED_MOST_MS: Final = 86_400_000
DECLINED_PAUSE_MS: Final = 30_000
#: How long an ended execution is kept whose policy says nothing, in milliseconds.
RETENTION_MS: Final = 86_400_000
#: How long the audit log and refused requests of transactions are kept, in milliseconds.
AUDIT_KEPT_MS: Final = 400 * 86_400_000
REFUSED_KEPT_MS: Final = 30 * 86_400_000
#: How long a quota and a budget that an app made is kept while nothing uses it, in milliseconds; and for how long an
#: app relies on one that it has asked for.
QUOTA_IDLE_MS: Final = 86_400_000
BUDGET_IDLE_MS: Final = 30 * 86_400_000
GATE_KNOWN_MS: Final = 3_600_000
#: Executions one call may create or claim.
MAX_BULK: Final = 100_000
MAX_CLAIM: Final = 1_000
#: Members and edges of one flow.
MAX_FLOW_NODES: Final = 100_000
MAX_FLOW_EDGES: Final = 500_000
#: A clock that goes back by more, in milliseconds, was set right and is followed; by less, time stands still.
CLOCK_STEP_MS: Final = 5_000
#: How long an execution is fresh, in milliseconds: its priority cannot be changed before.
INTAKE_MS: Final = 750
#: Times a batch loads what its rules missed, and times it is decided again after a lost race.
MAX_ROUNDS: Final = 16
MAX_TRIES: Final = 20
#: Characters of names and texts people give: namespaces, worker names, kinds, reasons.
MAX_NAME_BYTES: Final = 1_024
MAX_REASON_BYTES: Final = 65_536
#: Bytes of a policy.
MAX_POLICY_BYTES: Final = 65_536
#: Namespaces one search or claim may name.
MAX_NAMESPACES: Final = 100
MAX_TAGS: Final = 1_000
#: Lease and grant times to live, in milliseconds.
MAX_TTL_MS: Final = 2**32 - 1
#: Bytes of a signal's payload; waitpoints of one suspension; nodes of its condition.
MAX_SIGNAL_BYTES: Final = 65_536
MAX_WAITPOINTS: Final = 256
#: Waitpoints that an execution keeps beside those it waits on: the latest.
WAITPOINTS_KEPT: Final = 1_000
#: Waitpoints of one execution that are open to signals before it suspends on them.
MAX_PENDING_WAITPOINTS: Final = 1_000
MAX_CONDITION_NODES: Final = 1_024
#: How deep a condition may nest; the root counts as one.
MAX_COMPOSITE_DEPTH: Final = 4
#: Concurrent stream tails of one engine.
MAX_STREAM_TAILS: Final = 1_024
#: Steps one execution may remember.
MAX_STEPS_PER_EXECUTION: Final = 100_000
#: How deep stored JSON may nest, so that its later readers can follow.
MAX_JSON_DEPTH: Final = 128
#: Frames that one call may append.
MAX_FRAMES: Final = 1_000
#: Levels of budgets above each other, and dimensions of one budget or charge.
MAX_BUDGET_DEPTH: Final = 8
#: Budgets that one policy or flow may name: each is looked at whenever somebody claims.
MAX_NAMED_BUDGETS: Final = 256
MAX_DIMENSIONS: Final = 64
#: Dimensions that one budget may have limits for, and those that it counts without.
MAX_COUNTED_DIMENSIONS: Final = 256
#: Lanes one claim may serve together, and the weight of each.
MAX_LANES: Final = 100
MAX_WEIGHT: Final = 1_000
#: Bytes of a value by which a lane is shared before its digest takes its place; and executions that are ranked again
#: in one transaction after a lane's setting has changed.
MAX_FAIR_KEY_BYTES: Final = 128
RERANK_BATCH: Final = 500
#: Missed slots that one schedule catches up; bytes of a cron expression; milliseconds of jitter and of the shortest
#: interval.
MAX_CATCH_UP: Final = 1_000
#: Slots that one backfill of a schedule may hold.
MAX_BACKFILL: Final = 1_000
#: How long workers that have gone are remembered; how many of them are told; how many leases are counted by worker.
GONE_KEPT_MS: Final = 86_400_000
MAX_GONE_SHOWN: Final = 100
MAX_HELD_COUNTED: Final = 10_000
#: Executions that figures by kind are worked out from, and how far they may look back.
MAX_KINDS_SAMPLED: Final = 5_000
MAX_KINDS_WINDOW_MS: Final = 7 * 86_400_000
MAX_CRON_BYTES: Final = 256
MAX_JITTER_MS: Final = 86_400_000
MIN_INTERVAL_MS: Final = 1_000
#: Bytes of a kind's definition, kinds of one namespace, and how long a kind is kept that no worker announces any more.
MAX_KIND_BYTES: Final = 65_536
MAX_KINDS: Final = 1_000
KIND_KEPT_MS: Final = 30 * 86_400_000
#: How far executions of a kind are counted for people.
MAX_COUNTED: Final = 100_000
#: Lanes and budgets that one stored sample of the whole tells of.
MAX_SAMPLED: Final = 24
#: Leases of one execution that its history tells of.
MAX_LEASES_SHOWN: Final = 500
#: Failed attempts of one execution whose errors are told.
MAX_ERRORS_SHOWN: Final = 20
#: Entries of one page.
MAX_PAGE: Final = 1_000
MAX_EXPIRED_PAGE: Final = 10_000
