"""The data of a matplotlib figure as a document, by kind of chart."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import Any

Json = dict[str, Any]

#: Maximum points of one chart; the rest is left out.
_MAX_POINTS = 20_000


def of_figure(figure: Any) -> Json:
    """Extract the chart of a figure; several charts become elements of a ``superchart``.

    Returns:
        A document with ``type`` (``line``, ``scatter``, ``bar``, ``pie``, ``box_and_whisker``, ``superchart`` or
        ``unknown``), ``title`` and ``elements``; two-dimensional charts also have labels, units, and for points ticks.
    """
    charts = [_of_axes(axes) for axes in figure.axes]
    if len(charts) == 1:
        return charts[0]
    title = getattr(figure, "_suptitle", None)
    return {"type": "superchart", "title": title.get_text() if title else None, "elements": charts}


def _of_axes(axes: Any) -> Json:
    labels = (axes.get_xlabel() or None, axes.get_ylabel() or None)
    chart: Json = {"title": axes.get_title() or None, "x_label": labels[0], "y_label": labels[1]}
    chart |= {"x_unit": _unit(labels[0]), "y_unit": _unit(labels[1])}
    for kind, find in _KINDS:
        if elements := find(axes):
            ticks = _ticks(axes) if kind in ("line", "scatter") else {}
            return {"type": kind, **chart, **ticks, "elements": elements}
    return {"type": "unknown", **chart, "elements": []}


def _unit(label: str | None) -> str | None:
    """Return the unit of a label such as ``Mass (kg)``."""
    if label and label.rstrip().endswith(")") and "(" in label:
        return label.rstrip()[label.rindex("(") + 1 : -1] or None
    return None


def _ticks(axes: Any) -> Json:
    ticks: Json = {}
    for name in "xy":
        axis = getattr(axes, f"{name}axis")
        scale, places = _scale(axis), axis.get_majorticklocs()
        ticks[f"{name}_ticks"] = [_plain(v) for v in (_dates(places) if scale == "datetime" else places)]
        ticks[f"{name}_tick_labels"] = [t.get_text() for t in axis.get_ticklabels()]
        ticks[f"{name}_scale"] = scale
    return ticks


def _scale(axis: Any) -> str:
    with contextlib.suppress(AttributeError):
        converter = type(axis.get_converter() if hasattr(axis, "get_converter") else axis.converter).__name__
        if "Date" in converter:
            return "datetime"
        if "Category" in converter:
            return "categorical"
    return str(axis.get_scale())


def _dates(numbers: Any) -> list[Any]:
    from matplotlib.dates import num2date

    return list(num2date(numbers))  # type: ignore[no-untyped-call]


def _plain(value: Any) -> Any:
    """Convert a value to a number or text of JSON; a time becomes text in ISO 8601."""
    if type(value).__name__ == "datetime64":
        return str(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (int, float, str)) or value is None else str(value)


def _points(xs: Any, ys: Any) -> list[list[Any]]:
    return [[_plain(x), _plain(y)] for x, y in itertools.islice(zip(xs, ys), _MAX_POINTS)]  # noqa: B905


def _label(artist: Any, number: int, what: str) -> str:
    label = str(artist.get_label())
    return f"{what} {number}" if not label or label.startswith("_") else label


def _lines(axes: Any) -> list[Json]:
    lines = [line for line in axes.get_lines() if len(line.get_xdata())]
    return [
        {"label": _label(line, n, "line"), "points": _points(line.get_xdata(), line.get_ydata())}
        for n, line in enumerate(lines)
    ]


def _scatters(axes: Any) -> list[Json]:
    clouds, scatters = [c for c in axes.collections if type(c).__name__ == "PathCollection"], []
    for number, cloud in enumerate(clouds):
        xs, ys = cloud.get_offsets().T
        xs = _dates(xs) if _scale(axes.xaxis) == "datetime" else xs
        ys = _dates(ys) if _scale(axes.yaxis) == "datetime" else ys
        scatters.append({"label": _label(cloud, number, "scatter"), "points": _points(xs, ys)})
    return scatters


def _bars(axes: Any) -> list[Json]:
    bars: list[Json] = []
    for number, group in enumerate(c for c in axes.containers if type(c).__name__ == "BarContainer"):
        flat = getattr(group, "orientation", "vertical") == "horizontal"
        axis = axes.yaxis if flat else axes.xaxis
        names = {round(float(p), 6): t.get_text() for p, t in zip(axis.get_majorticklocs(), axis.get_ticklabels())}  # noqa: B905
        for bar in group.patches[:_MAX_POINTS]:
            middle = bar.get_y() + bar.get_height() / 2 if flat else bar.get_x() + bar.get_width() / 2
            label = names.get(round(float(middle), 6)) or str(_plain(middle))
            value = bar.get_width() if flat else bar.get_height()
            bars.append({"label": label, "group": _label(group, number, "bar"), "value": _plain(value)})
    return bars


def _pies(axes: Any) -> list[Json]:
    wedges = [p for p in axes.patches if type(p).__name__ == "Wedge"]
    return [
        {"label": _label(w, n, "part"), "angle": abs(w.theta2 - w.theta1), "radius": _plain(w.r)}
        for n, w in enumerate(wedges)
    ]


def _boxes(axes: Any) -> list[Json]:
    """Extract box plots; matplotlib draws a box as a line or patch, two whiskers, two caps, a median and outliers."""
    with contextlib.suppress(Exception):
        groups = [c for c in axes.containers if type(c).__name__ == "BoxPlotContainer"]  # matplotlib 3.11
        if groups:
            return [box for group in groups for box in _boxes_of(axes, list(group.get_children()))]
    lines = list(axes.get_lines())
    patches = [p for p in axes.patches if type(p).__name__ == "PathPatch"]
    return _boxes_of(axes, lines, patches)


def _boxes_of(axes: Any, lines: list[Any], patches: Any = ()) -> list[Json]:
    each = 6 if patches else 7
    flat = [line for line in lines if hasattr(line, "get_xdata")]
    if not flat or len(flat) % each:
        return []
    names = [t.get_text() for t in axes.get_xticklabels()]
    boxes = []
    for n in range(len(flat) // each):
        parts = flat[n * each : (n + 1) * each]
        box = patches[n].get_path().vertices[:, 1] if patches else parts[0].get_ydata()
        low, high, cap_low, cap_high, median, outside = parts[-6:]
        if [len(p.get_ydata()) for p in (low, high, cap_low, cap_high, median)] != [2] * 5 or len(box) < 5:
            return []
        label = names[n] if n < len(names) else str(n + 1)
        values = {"min": cap_low.get_ydata()[0], "first_quartile": min(box), "median": median.get_ydata()[0]}
        values |= {"third_quartile": max(box), "max": cap_high.get_ydata()[0]}
        outliers = [_plain(v) for v in outside.get_ydata()[:_MAX_POINTS]]
        boxes.append({"label": label, **{k: _plain(v) for k, v in values.items()}, "outliers": outliers})
    return boxes


_KINDS = (("box_and_whisker", _boxes), ("pie", _pies), ("bar", _bars), ("scatter", _scatters), ("line", _lines))
