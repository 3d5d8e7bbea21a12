"""FlowFabric: durable execution for Python. See ``flowfabric.engine`` for the engine itself.

Names are imported when they are first used, so importing the package costs next to nothing. Type checkers read
``__init__.pyi``, which lists the same names.
"""

from typing import Any

__version__ = "0.1.0"

#: Modules, and the names that live there.
_MODULES = {
    "model.operations.budgets": (
        "AdmissionResult Admitted AlreadyAdmitted AlreadyApplied BudgetAsked BudgetPage BudgetStatus "
        "ConcurrencyExceeded CreateBudgetResult CreateQuotaPolicyResult HardBreach LimitsSet Ok OnHardLimit "
        "QuotaPolicyInfo QuotaPolicyLimits QuotaPolicyPage RateExceeded ReportUsageResult ReservationReleased "
        "ReserveResult Reserved Reset SettleResult Settled SoftBreach UsageAndLimits UsageDimensions"
    ),
    "model.operations.access": "CredentialCreated CredentialInfo CredentialPage CredentialRevoked Scope",
    "model.errors": (
        "Bug BugKind Conflict ConflictKind Contention ContentionKind Contextual EngineError ErrorClass LimitReached "
        "NotFound RequiresDevMode ResourceExhausted State StateKind StreamBackpressure StreamDisconnected StreamGap "
        "WrongLoop "
        "Timeout Transport TransportKind Unavailable Validation ValidationKind"
    ),
    "model.reads.explain": (
        "ChainLink ExhaustedBudget Explanation FullQuota Gate LeaseHolder OpenChildren OpenDependencies OpenQuestion "
        "OpenSuspension OpenWaitpoint QueuePlace"
    ),
    "model.operations.flows": (
        "AddExecutionToFlowResult AllOf AnyOf ApplyDependencyResult CascadeOutcome CompletionPayload "
        "CreateFlowResult EdgeGroupSnapshot EdgePolicy EdgeSnapshot EdgeState FlowEdge FlowGraph FlowPage "
        "FlowProjection FlowSnapshot FlowStatus FlowSubmitted FlowSummary GroupState Incoming OnSatisfied "
        "Outgoing Quorum ResolveDependencyResult SetEdgeGroupPolicyResult Staged"
    ),
    "model.streams.frames": (
        "AppendFrameOutcome At BestEffortLive Durable DurableSummary End Frame FrameContent FrameKind Opening "
        "PatchKind Start StreamCursor StreamFrame StreamFrames StreamVisibility SummaryDocument"
    ),
    "model.operations.executions": (
        "GrantCheck AlreadySatisfied Blocked CancelFlowHeader CancelFlowResult Cancelled Cancelling ClaimGrant "
        "ClaimPolicy Claimed Completed Created Declined Delayed Duplicate ExecutionContext ExecutionInfo "
        "ExecutionSnapshot ExpiryMark FailureClass GrantIssued GrantNotFound Granted LeaseRenewal Marked Moved NoWork "
        "NotReclaimable NotRegistered OperatorLease PriorityChanged ReclaimCapExceeded ReclaimGrant Reclaimed "
        "Refreshed Registered Rejected Renewed Replayed ResumeGrant ResumeToken RetryScheduled Revoked ScannerFilter "
        "TerminalFailed Unblocked"
    ),
    "model.handles": "BackendTag Handle HandleKind HandlePayload",
    "model.ids": (
        "AttemptId BudgetId CancelSource EdgeId ExecutionId FlowId LaneId LeaseFence LeaseId Namespace "
        "QuotaPolicyId SignalId SuspensionId WaitpointId WorkerId WorkerInstanceId"
    ),
    "model.operations.lanes": "LaneFairnessChanged LaneSnapshot LaneStateChanged",
    "model.partitions": "PartitionCounts PartitionFamily PartitionKey",
    "model.policy": (
        "ExecutionPolicy ExponentialBackoff FixedBackoff RetryPolicy RoutingRequirements StreamPolicy "
        "SuspensionPolicy TimeoutPolicy"
    ),
    "model.operations.enqueue": (
        "Debounced EnqueueDraft RequestDropped RequestPage RequestRefused RequestRetried RequestSnapshot"
    ),
    "model.streams.restarts": "Restart RestartReason",
    "model.operations.schedules": (
        "BackfillResult CatchUp Cron Every FireResult Overlap PutScheduleResult ScheduleDeleted SchedulePage "
        "SchedulePaused ScheduleResumed ScheduleRun ScheduleRuns ScheduleSnapshot ScheduleSpec SkipReason"
    ),
    "model.reads.search": "ExecutionSummary QueueDepth SearchPage",
    "model.states": (
        "AttemptState BlockingReason EligibilityState LaneState LifecyclePhase OwnershipState PublicState "
        "StateVector TerminalOutcome"
    ),
    "model.reads.subscriptions": (
        "CompletionEvent CompletionOutcome EventBatch EventFamily InstanceTagEvent LeaseHistoryEvent "
        "OperatorEvent SignalDeliveryEffect SignalDeliveryEvent cursor_from_text cursor_to_text"
    ),
    "model.operations.suspension": (
        "Accepted AlreadySeeded DeliverSignalResult Fresh PartitionRotation PendingWaitpoint ResumePolicy "
        "ResumeSignal ResumeTrigger Resumed RotateSecret Seeded SuspendArgs SuspendOutcome SuspendOutcomeDetails "
        "Suspended SuspensionReason SuspensionRequester TimeoutBehavior UsePending VerifyingKid "
        "WaitpointCredential WaitpointEntry WaitpointKids WaitpointPage"
    ),
    "tracing": "current_trace trace_context",
    "model.waitpoint_tokens": "Token",
    "model.trace": "TraceContext",
    "sdk.asks.answer": "Answered",
    "sdk.app": "App",
    "sdk.asks.ask": "Ask OpenAsk",
    "sdk.context": "Ctx",
    "sdk.definitions.tasks": "Step Task Workflow",
    "sdk.workflows.durable": "first gather limit now random sleep uuid",
    "sdk.durations": "days hours minutes seconds",
    "sdk.errors": (
        "AlreadyAnswered AskClosed AskTimedOut BadAnswer BadArguments BadDependency BadDuration BadOptions BadPayload "
        "BadResult BadSignature BadStep BlocksLoop CancelRequested IdConflict NotCommitted NotOpen ResultTimeout "
        "RunCancelled RunEnded RunExpired RunFailed RunSkipped SdkError ServerRefused StartRefused StepFailed "
        "StillPending UnknownRun "
        "UnknownSchedule UnknownTask"
    ),
    "sdk.runs.frames": "Output RunFrame RunRestart",
    "sdk.definitions.depends": "Depends injected",
    "sdk.options": "Budget Debounce Limit Rate Retry",
    "sdk.runs.run": "Run RunStatus",
    "sdk.testing": "Testing",
    "sdk.worker": "Worker",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module 'flowfabric' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"flowfabric.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
