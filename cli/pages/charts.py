"""The common parts of pages with plots: the plots' style, their SVG, and how numbers and names are written.

Matplotlib makes the plots as SVG inside the page; their text stays text, so that it can be searched.
"""

from __future__ import annotations

import io
import re
from contextlib import AbstractContextManager
from typing import Any

import jinja2
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from views.words import clean

PHANTOM, FLEX, BACKED, INK, BAD = "#9aa5b1", "#2f7ed8", "#bcd9f5", "#1c2430", "#c0392b"
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "backstop",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#c5ced8",
    "text.parse_math": False,
}


def style() -> AbstractContextManager[None]:
    """Set one style for the plots that are made inside."""
    return rc_context(_STYLE)


def axes(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9, height), layout="constrained")
    return figure, figure.add_subplot()


def name_bars(bars: BarContainer, name: str) -> BarContainer:
    """Give each bar an id, so that a test can find and measure it in the page."""
    for number, bar in enumerate(bars):
        bar.set_gid(f"{name}-{number}")
    return bars


def svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"^.*?(?=<svg)", "", out.getvalue(), flags=re.DOTALL)  # the page has a head of its own


def render_page(template: str, **values: Any) -> str:
    """Render a page of cli/templates; people's texts are escaped in it."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cli"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template).render(**values)


def share(part: int, whole: int) -> str:
    return f"{round(100 * part / whole)}%" if whole else "0%"


def short_name(name: str, most: int = 32) -> str:
    """Cut a name in the middle: names of one fleet often begin alike."""
    text = clean(name)
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-most // 2 :]}"
