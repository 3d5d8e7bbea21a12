"""What was done wrong once, step by step: plans take turns with these stories, and go on as they like.

The first plans tell each story with answers that come when it says so; the others tell it while answers come as they
like. A step is one of these, with what it is about:

* ``press``, ``double``, ``two``, ``type``: press something that is called so (a regular expression) as soon as it is
  there; ``meets``: press the
  lowest one, everything arrives, and the second click of a double click follows;
* ``choose``: so many rows of the list; ``key``: press it; ``others``: somebody else does this;
* ``leave``: go to another page;
* ``lose``, ``give``: what becomes of the next answer to a request that is called so;
* ``arrive``: every answer to requests that are called so arrives, ``first``: only the first one, ``quiet``: all of them
  and whatever follows;
* ``after``: so many milliseconds pass and nothing arrives; ``wait``: so many turns in which something may arrive.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Story: TypeAlias = tuple[tuple[str, Any], ...]

#: As long as it takes until the console looks again after it was told that something has changed.
LOOKS_MS = 800
LIST, CANCEL, BULK = "GET /v1/search/executions", "/request-cancel$", "POST /v1/bulk/cancel"
ASKS, SCHEDULES = "GET /v1/asks$", "GET /v1/search/schedules"

#: Three are cancelled, and before the answers are there the dialog is left and another one is opened.
LEFT_ACT: Story = (
    ("quiet", None), ("choose", 3), ("press", "^Cancel…$"), ("press", "^submit$"), ("key", "Escape"), ("key", "?"),
    ("arrive", CANCEL), ("wait", 4),
)  # fmt: skip
#: The same, and one answer is lost.
LEFT_FAILURE: Story = (
    ("quiet", None), ("choose", 3), ("press", "^Cancel…$"), ("lose", CANCEL), ("press", "^submit$"),
    ("key", "Escape"), ("arrive", CANCEL), ("after", 50), ("after", 50), ("wait", 4),
)  # fmt: skip
#: More than are asked for at the same time; the first answer is lost while the others are on their way.
LOST_ONE: Story = (
    ("quiet", None), ("choose", 7), ("press", "^Cancel…$"), ("lose", CANCEL), ("press", "^submit$"),
    ("first", CANCEL), ("arrive", CANCEL), ("press", "^submit$"), ("wait", 9),
)  # fmt: skip
#: The second page of what is counted cannot be had.
FAILED_COUNT: Story = (
    ("quiet", None), ("press", "^Bulk actions"), ("give", BULK), ("lose", BULK), ("press", "^Cancel all"),
    ("quiet", None), ("press", "^submit$"), ("wait", 9), ("press", "^Count again"), ("wait", 9), ("press", "^submit$"),
    ("wait", 9),
)  # fmt: skip
#: The answer to the second batch is lost, and it is tried again.
LOST_BATCH: Story = (
    ("quiet", None), ("press", "^Bulk actions"), ("press", "^Cancel all"), ("quiet", None), ("give", BULK),
    ("lose", BULK), ("press", "^submit$"), ("arrive", BULK), ("arrive", BULK), ("press", "^submit$"), ("wait", 9),
)  # fmt: skip
#: New rows arrive above the cursor, and keys are pressed while the list is read again.
KEYS: Story = (
    ("quiet", None), ("key", "j"), ("key", "j"), ("others", "create"), ("after", LOOKS_MS), ("key", "j"),
    ("arrive", LIST), ("key", "x"), ("others", "create"), ("after", LOOKS_MS), ("arrive", LIST), ("key", "k"),
    ("key", "x"), ("key", "End"), ("others", "create"), ("wait", 9), ("key", "k"), ("key", "Enter"),
)  # fmt: skip
#: The list is left for another one, or for another page, while it is read again.
LEFT_LIST: Story = (
    ("quiet", None), ("key", "j"), ("others", "create"), ("after", LOOKS_MS), ("press", "^waiting"), ("arrive", LIST),
    ("quiet", None), ("key", "j"), ("others", "create"), ("after", LOOKS_MS), ("leave", "flows"),
    ("arrive", LIST), ("wait", 4),
)  # fmt: skip
#: Questions that are due arrive while one is answered.
NEWER_QUESTIONS: Story = (
    ("quiet", None), ("type", "^input f-answer-note$"), ("others", "ask_urgently"), ("after", LOOKS_MS),
    ("arrive", ASKS), ("others", "ask_urgently"), ("after", LOOKS_MS), ("two", "^Yes$"), ("arrive", ASKS), ("wait", 9),
)  # fmt: skip
#: One of several gives two answers at once.
TWO_YESES: Story = (
    ("quiet", None), ("press", "^select by$"), ("meets", "^Yes$"), ("quiet", None), ("others", "answer"), ("wait", 9),
)  # fmt: skip
#: Two clicks, and in between the button is another one.
PAUSED: Story = (("quiet", None), ("meets", "^Pause$"), ("quiet", None), ("meets", "^Resume$"), ("wait", 9))
#: Two clicks, and in between a message moves everything.
MOVED: Story = (
    ("quiet", None), ("lose", SCHEDULES), ("lose", SCHEDULES), ("meets", "^Pause$"), ("quiet", None), ("wait", 4),
)  # fmt: skip
#: A credential is made twice, and its dialog is left before its token is there.
TOKEN: Story = (
    ("quiet", None), ("press", "^New credential…$"), ("type", "^input c-name$"), ("double", "^submit$"),
    ("key", "Escape"), ("arrive", "POST"), ("key", "Escape"), ("wait", 9),
)  # fmt: skip
LEFT_TOKEN: Story = (
    ("quiet", None), ("press", "^New credential…$"), ("type", "^input c-name$"), ("press", "^submit$"),
    ("key", "Escape"), ("key", "Escape"), ("arrive", "POST"), ("wait", 9),
)  # fmt: skip
MORE: Story = (("quiet", None), ("press", "^More$"), ("wait", 9))
OLDER: Story = (("quiet", None), ("press", "^Older$"), ("wait", 9))
NONE: Story = ()

STORIES: dict[str, tuple[Story, ...]] = {
    "executions": (LEFT_ACT, LEFT_FAILURE, LOST_ONE, FAILED_COUNT, LOST_BATCH, KEYS, LEFT_LIST),
    "approvals": (NEWER_QUESTIONS, TWO_YESES),
    "schedules": (PAUSED, MOVED, NONE),
    "settings": (TOKEN, LEFT_TOKEN, NONE),
    "flows": (MORE, NONE),
    "audit": (OLDER, NONE),
}
#: What somebody may be after on a page: what they press one after the other, by its words or its field.
AIMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "executions": (
        ("^Select ", "^(Cancel|Replay)…$", "^submit$"),
        ("^Bulk actions", "all matches…$", "^(submit|Count again)$"),
        (),
    ),
    "execution": (("^Cancel…$", "^submit$"), ("^More", "(priority|Terminate|Start again).*…$", "^submit$"), ()),
    "ended": (("^Replay…$", "^submit$"), ("^More", "^Start again", "^submit$")),
    "flow": (("^Cancel…$", "^submit$"), ()),
    "flows": (("^More$",), ()),
    "audit": (("^Older$",), ()),
    "approvals": (("^select by$", "^(Yes|No)$"), ("^(Yes|No)$",), ("^Link$",), ()),
    "schedules": (("^(Pause|Resume)$",), ("^(Pause|Resume)$",), ("^Start…$", "^submit$")),
    "schedule": (("^(Pause|Resume)$",), ("^(Start|Backfill|Edit)…$", "^submit$"), ("^Delete…$", "^submit$")),
    "budgets": (("^Limits…$", "^input limit", "^submit$"), ("^Reset…$", "^submit$")),
    "workers": (("^Change$", "^(Pause|Drain|Close|Resume)…$", "^submit$"), ()),
    "kinds": (("^Start…$", "^submit$"), ()),
    "settings": (("^New credential…$", "^input c-name$", "^submit$"),),
}  # fmt: skip
#: What others do that a page shows.
MATTERS = {
    "executions": ("create", "create", "fail", "cancel"),
    "failures": ("fail",),
    "approvals": ("ask", "ask", "answer", "answer"),
    "schedules": ("switch",),
    "schedule": ("switch",),
    "budgets": ("limit",),
    "overview": ("create", "fail", "ask", "answer", "switch"),
    "kinds": ("create", "fail"),
}
