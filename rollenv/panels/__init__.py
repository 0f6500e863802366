"""Panels: named lists of tasks, fixed by content, on which results compare."""

from rollenv.panels.panel import Member, Panel, PanelError, Part
from rollenv.panels.shelf import is_panel, load_panel, panels

__all__ = ["Member", "Panel", "PanelError", "Part", "is_panel", "load_panel", "panels"]
