"""Workers: what claims work and runs it."""

from flowfabric.sdk.worker.attempt import Interruption, Job, Parked, WorkerShared, run_attempt
from flowfabric.sdk.worker.worker import Worker, run_worker

__all__ = ["Interruption", "Job", "Parked", "Worker", "WorkerShared", "run_attempt", "run_worker"]
