"""Which form of headway is imported: compiled where it was built, or interpreted on request.

A compiled module and its `.py` lie side by side, and Python prefers the binary. With HEADWAY_PURE set (to
anything but "" and "0") a finder that sees only `.py` files answers first, for modules of this package alone.
It must be in place before any of them is imported, so `headway/__init__.py` imports this module before all
others.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from types import ModuleType

_PACKAGE = __name__.partition(".")[0]


class _SourceFinder:
    """Finds modules of headway as source, never as binary."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or not name.startswith(f"{_PACKAGE}."):
            return None
        for folder in path:
            spec = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name, target)
            if spec is not None and spec.loader is not None:
                return spec
        return None


def pure_wanted() -> bool:
    """Whether the environment asks for the interpreted form."""
    return os.environ.get("HEADWAY_PURE", "") not in ("", "0")


def install() -> None:
    """Put the finder first, once, when the interpreted form is wanted."""
    if pure_wanted() and _SourceFinder not in sys.meta_path:
        sys.meta_path.insert(0, _SourceFinder)


install()
