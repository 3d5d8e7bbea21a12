"""What the key of a grant turns out to be."""

from __future__ import annotations

from enum import StrEnum


class GrantCheck(StrEnum):
    """The answer to "is this grant key good?"."""

    VALID = "valid"
    #: Not the text of a grant key of this store.
    MALFORMED = "malformed"
    #: Signed by a key that is not there, or whose grace is over.
    UNKNOWN_KID = "unknown_kid"
    #: Not signed for this worker, or changed since.
    SIGNATURE_MISMATCH = "signature_mismatch"
    EXPIRED = "expired"
    #: Genuine, and used up or withdrawn.
    UNKNOWN_GRANT = "unknown_grant"
