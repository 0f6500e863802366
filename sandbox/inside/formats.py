"""Every representation that a value offers: what notebooks ask values for, figures, tables and the points of charts."""

from __future__ import annotations

import base64
import contextlib
import importlib.machinery
import io
import json
import sys
from collections.abc import Callable
from typing import Any

from rollenv.sandbox.inside import charts

#: Representations with short names, by the method that offers them; every other one has its MIME type's name.
_METHODS = {
    "html": "_repr_html_",
    "markdown": "_repr_markdown_",
    "svg": "_repr_svg_",
    "png": "_repr_png_",
    "jpeg": "_repr_jpeg_",
    "pdf": "_repr_pdf_",
    "latex": "_repr_latex_",
    "json": "_repr_json_",
    "javascript": "_repr_javascript_",
}
SHORT = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
}
#: Rows of a table beyond which its data are left out.
_MAX_ROWS = 10_000


def formats(value: Any) -> dict[str, str]:
    """Every representation that a value offers, as text: pictures in base64, documents as JSON."""
    found: dict[str, Any] = {}
    for name, method in _METHODS.items():
        if hasattr(type(value), method):
            with contextlib.suppress(Exception):
                found[name] = _without_metadata(getattr(value, method)())
    if hasattr(type(value), "_repr_mimebundle_"):
        with contextlib.suppress(Exception):
            bundle = _without_metadata(value._repr_mimebundle_())
            found.update((SHORT.get(str(name), str(name)), what) for name, what in bundle.items())
    if "matplotlib" in sys.modules:
        _figure(value, found)
    if "pandas" in sys.modules and hasattr(value, "columns") and hasattr(value, "to_json"):
        _table(value, found)
    if isinstance(value, (dict, list)):
        found.setdefault("json", value)
    shown = bundle_of(found)
    if "text" not in shown:
        shown["text"] = _repr(value)
    return shown


def bundle_of(found: dict[str, Any]) -> dict[str, str]:
    """Representations as text. What cannot be made text is left out."""
    shown: dict[str, str] = {}
    for name, what in found.items():
        with contextlib.suppress(Exception):  # circular, or of no type that can be shown
            text = _text(name, what)
            if text is not None:
                shown[str(name)] = text
    return shown


def _without_metadata(shown: Any) -> Any:
    """A representation may come with a second value that says how to show it."""
    return shown[0] if isinstance(shown, tuple) and len(shown) == 2 else shown


def _text(name: str, what: Any) -> str | None:
    if what is None:
        return None
    if name in ("json", "data", "chart") or (name.endswith("json") and not isinstance(what, (str, bytes))):
        return json.dumps(what)
    return base64.b64encode(what).decode() if isinstance(what, bytes) else str(what)


def _repr(value: Any) -> str:
    try:
        return str(repr(value))
    except Exception as error:
        return f"<{type(value).__name__} whose repr raised {type(error).__name__}>"


def _figure(value: Any, found: dict[str, Any]) -> None:
    if not hasattr(value, "savefig") or not hasattr(value, "axes"):
        return
    if "png" not in found:
        with contextlib.suppress(Exception):
            picture = io.BytesIO()
            value.savefig(picture, format="png", bbox_inches="tight")
            found["png"] = picture.getvalue()
    with contextlib.suppress(Exception):
        found["chart"] = charts.of_figure(value)


def _table(value: Any, found: dict[str, Any]) -> None:
    with contextlib.suppress(Exception):
        if len(value) <= _MAX_ROWS:
            columns = {str(name): value.iloc[:, i] for i, name in enumerate(value.columns)}
            found["data"] = {
                name: json.loads(c.to_json(orient="values", date_format="iso")) for name, c in columns.items()
            }


class ShowFigures:
    """Makes ``pyplot.show()`` call back as soon as pyplot is imported, which may be at any time or never."""

    def __init__(self, show: Callable[[], None]):
        self.show = show
        if pyplot := sys.modules.get("matplotlib.pyplot"):
            self._change(pyplot)
        else:
            sys.meta_path.insert(0, self)

    def _change(self, pyplot: Any) -> None:
        pyplot.show = lambda *args, **kwargs: self.show()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find pyplot, once; other imports are not affected."""
        if name != "matplotlib.pyplot":
            return None
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def then(module: Any) -> None:
                execute(module)
                self._change(module)

            spec.loader.exec_module = then  # type: ignore[method-assign]
        return spec
