"""Panels: named lists of tasks, fixed by content, on which results compare."""

from rollenv.panels.panel import Member, Panel, PanelError, PanelPart
from rollenv.panels.shelf import is_panel, load_panel, panels

__all__ = ["Member", "Panel", "PanelError", "PanelPart", "is_panel", "load_panel", "panels"]
