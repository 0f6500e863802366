"""Curves as a file: an SVG with its own axes and legend, without scripts."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

_COLOURS = ("#1f6feb", "#d4622a", "#2a8a4a", "#8250df")
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 720, 400, 60, 20, 210, 50
_TICKS = 5


def curves_svg(curves: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str) -> str:
    """Draw curves of finite numbers on one pair of axes. Pairs of curves share a colour, the second being dashed.

    Args:
        curves: points by name; at least one.
        x: label of the axis.
        y: label of the axis.
    """
    across, up = ([point[axis] for points in curves.values() for point in points] for axis in (0, 1))
    spans = [(min(values), max(max(values) - min(values), 1e-9)) for values in (across, up)]

    def place(point: tuple[float, float]) -> tuple[float, float]:
        parts = [(value - low) / span for value, (low, span) in zip(point, spans, strict=True)]
        return _LEFT + parts[0] * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - parts[1] * (_HEIGHT - _TOP - _BOTTOM)

    parts = []
    for tick in range(_TICKS):
        value = [low + span * tick / (_TICKS - 1) for low, span in spans]
        at = place((value[0], value[1]))
        parts.append(f'<text x="{at[0]:.1f}" y="{_HEIGHT - 30}" text-anchor="middle">{value[0]:.3g}</text>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at[1] + 4:.1f}" text-anchor="end">{value[1]:.3g}</text>')
        parts.append(f'<path d="M{_LEFT} {at[1]:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 8}">{html.escape(x)}</text>')
    parts.append(f'<text x="{_LEFT}" y="12">{html.escape(y)}</text>')
    for number, (name, points) in enumerate(curves.items()):
        colour, dash = _COLOURS[number // 2 % len(_COLOURS)], ' stroke-dasharray="6 4"' * (number % 2)
        placed = [place(point) for point in points]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in placed)
        dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in placed)
        row, right = 30 + 22 * number, _WIDTH - _RIGHT + 16
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>{dots}')
        parts.append(f'<path d="M{right} {row}h24" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{right + 30}" y="{row + 4}">{html.escape(name)}</text>')
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    style = 'font-family="sans-serif" font-size="12" style="background:#fff"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(parts)}</svg>\n'
