"""The numbers by which servers and callers elsewhere know whether they understand each other.

A server understands every caller from ``OLDEST`` on. A caller may be newer than its server while both are deployed;
what the server does not understand then is refused with ``NOT_UNDERSTOOD`` and nothing is done, so that it can be asked
of another server, or later.
"""

from __future__ import annotations

from typing import Final

#: Raised when calls or their arguments change in a way that the other side has to know of.
PROTOCOL: Final = 1
#: The oldest that this release still understands.
OLDEST: Final = 1
#: What a refusal is called that is about the release and not about the call.
NOT_UNDERSTOOD: Final = "not_understood"
