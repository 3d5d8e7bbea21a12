"""Where the examples keep their runs: a new SQLite file that is removed at the end, or what ``FF_URL`` says."""

import atexit
import logging
import os
import shutil
import tempfile


def store_url() -> str:
    """The address of a store. In a program of your own it is one line: ``App("sqlite:///work.db")``."""
    # Workers log what they stop and why. Here it is stopped on purpose, and told by the example itself.
    logging.getLogger("flowfabric").addHandler(logging.NullHandler())
    if "FF_URL" in os.environ:
        return os.environ["FF_URL"]
    folder = tempfile.mkdtemp(prefix="flowfabric-example-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return f"sqlite:///{folder}/runs.db"
