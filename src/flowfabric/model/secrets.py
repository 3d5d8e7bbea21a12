"""Records that hold a secret and do not show it."""

from __future__ import annotations

from typing import Any, ClassVar


class _Redacted:
    def __repr__(self) -> str:
        return "<REDACTED>"


REDACTED = _Redacted()


class Discreet:
    """A struct that shows its fields but for those that ``HIDDEN`` names: not in ``repr``, nor in what is made from it
    (``str``, tracebacks, logs, reports), nor to rich."""

    __slots__ = ()
    __struct_fields__: ClassVar[tuple[str, ...]]
    HIDDEN: ClassVar[frozenset[str]] = frozenset()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        fields = [(name, getattr(self, name)) for name in self.__struct_fields__]
        return [(name, REDACTED if value and name in self.HIDDEN else value) for name, value in fields]
