"""Which browser the tests drive: the machine's Chromium, or the one that ``FF_TEST_CHROMIUM`` names.

The one that was built to run without a window needs half as much of a processor as the one that can have one.
"""

from __future__ import annotations

import os
import shutil

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str:
    """The program. Without one the test is skipped by name; where a browser is expected, it fails."""
    named = os.environ.get("FF_TEST_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, NAMES)), None)
    if found is not None:
        return found
    sentence = "no Chromium on this machine: install it, or name one with FF_TEST_CHROMIUM"
    if os.environ.get("FF_TEST_NEEDS_BROWSER"):
        pytest.fail(sentence)
    pytest.skip(sentence)
