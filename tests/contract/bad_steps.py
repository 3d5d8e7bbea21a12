"""What no durable function can mean; see ``bad_values``."""

from __future__ import annotations

from typing import Any

from flowfabric import ValidationKind
from flowfabric.model.operations.workflows import ChildWait, LiveStep, NewStep, StepPlace
from tests.contract.bad_values import UUID, Bad, _invalid, _refusals

_ID = f"{{fp:0}}:{UUID}"
_NO_SEQUENCE: tuple[Any, ...] = (5, None, True, "text", object())

BAD_STEPS: dict[str, list[Bad]] = {
    "steps": _invalid(
        *_NO_SEQUENCE, ["a"], [None], [NewStep("")], [NewStep("x" * 1_025)], [NewStep(5)], [NewStep("a", "text")],
        [NewStep("a", b"", "maybe")], [NewStep("\x00")], [NewStep("a"), NewStep("a")],
    ) + _refusals(ValidationKind.PAYLOAD_TOO_LARGE, [NewStep("a", b"x" * 1_048_577)]),
    "children": _invalid(
        *_NO_SEQUENCE, ["a"], [{}], [{"execution_kind": "x"}], [{"execution_id": f"{{fp:9999}}:{UUID}"}],
        [{"execution_id": "x"}], [{"execution_id": _ID, "nonsense": 1}], [{"execution_id": _ID, "lane_id": ""}],
    ),
    "child wait?": _invalid(
        5, "text", True, object(), ChildWait(), ChildWait(("x",), 1), ChildWait((_ID,), 0), ChildWait((_ID,), 2),
        ChildWait((_ID,), -1), ChildWait((), 1, 5), ChildWait((), 0, "5"),
        ChildWait((_ID,), 1, None, 1),
    ),
    "live step?": _invalid(5, "text", True, object(), LiveStep("x", "a"), LiveStep(_ID, 5), LiveStep(_ID, "\x00")),
    "step place?": _invalid(
        5, "text", True, object(), StepPlace("x", "a", 0), StepPlace(-1, "a", 0), StepPlace(2**31, "a", 0),
        StepPlace(1, 5, 0), StepPlace(1, "\x00", 0),
    ),
    "step names?": _invalid(5, "text", b"x", True, object(), {"a": 1}, [5], [None], ["\x00"]),
    "step names": _invalid(5, None, "text", b"x", True, object(), {"a": 1}, [5], [None], ["\x00"]),
    "ids": _invalid(5, None, True, object(), ["x"], [5], [None], [""]),
}  # fmt: skip
