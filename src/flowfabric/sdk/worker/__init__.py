"""Workers: claim work, run it in the loop, in threads or in processes, and renew its leases."""

from flowfabric.sdk.worker.attempt import Interruption, Job, Parked, run_attempt
from flowfabric.sdk.worker.program import run_worker
from flowfabric.sdk.worker.shared import WorkerShared
from flowfabric.sdk.worker.worker import Worker

__all__ = ["Interruption", "Job", "Parked", "Worker", "WorkerShared", "run_attempt", "run_worker"]
