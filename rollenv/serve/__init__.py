"""``rollenv serve``: environments and sandboxes for any client, with one server process and worker processes."""

from typing import TYPE_CHECKING

from rollenv.core.lazy import lazy_names

if TYPE_CHECKING:
    from rollenv.serve.server import Settings

__all__ = ["Settings"]

__getattr__, __dir__ = lazy_names(__name__)
