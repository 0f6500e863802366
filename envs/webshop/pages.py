"""The pages of the shop: their nodes, clickable elements, and renderings as text or HTML.

A page is a list of nodes, from which every mode is rendered.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rollenv.envs.webshop.product import Product
from rollenv.envs.webshop.search import Results

MODES = ("html", "text", "text_rich")
SEPARATOR = " [SEP] "
SUB_PAGES = ("description", "features", "reviews")
SEARCH, BACK, NEXT, PREVIOUS, BUY = "Search", "Back to Search", "Next >", "< Prev", "Buy Now"


class PagePart(NamedTuple):
    """A visible element: ``kind`` is text, title, price, heading, button, product or option."""

    kind: str
    text: str
    option: str = ""
    """Name of the option, for its values."""


@dataclass(slots=True)
class View:
    """The page of a customer, whose content is a function of this, the goal and the catalogue."""

    page: str = "index"
    """``index``, ``results``, ``item``, ``done`` or one of :data:`SUB_PAGES`."""
    keywords: str = ""
    number: int = 1
    """Number of the page of results, from 1."""
    product: int = -1
    options: dict[str, str] = field(default_factory=dict)
    """Chosen values by the name of the option, in the order of the clicks."""
    visited: list[str] = field(default_factory=list)
    """ASINs of the visited items, in order."""


class PageContent(NamedTuple):
    """The data for the nodes of a page."""

    instruction: str
    results: Results
    product_of: Callable[[int], Product]
    window: int
    """Products on a page of results."""
    reward: float = 0.0


def nodes(view: View, content: PageContent) -> list[PagePart]:
    """Return the nodes of a page, from top to bottom."""
    if view.page == "done":
        return _done(view, content)
    head = [PagePart("heading", "Instruction:"), PagePart("text", content.instruction)]
    if view.page == "index":
        return [PagePart("heading", "WebShop"), *head, PagePart("button", SEARCH)]
    head.append(PagePart("button", BACK))
    if view.page == "results":
        return head + _results(view, content)
    head.append(PagePart("button", PREVIOUS))
    product = content.product_of(view.product)
    return head + (_item(product) if view.page == "item" else _sub_page(view.page, product))


def _results(view: View, content: PageContent) -> list[PagePart]:
    found = [PagePart("text", f"Page {view.number} (Total results: {len(content.results)})")]
    if view.number > 1:
        found.append(PagePart("button", PREVIOUS))
    found.append(PagePart("button", NEXT))
    first = (view.number - 1) * content.window
    for number in content.results[first : first + content.window].tolist():
        product = content.product_of(number)
        found += _parts(product=product.asin, title=product.title, price=product.price_tag)
    return found


def _item(product: Product) -> list[PagePart]:
    found = []
    for name, values in product.options.items():
        found.append(PagePart("heading", name))
        found += [PagePart("option", value, name) for value in values]
    found += _parts(title=product.title, price=f"Price: {product.price_tag}", text="Rating: N.A.")
    found += [PagePart("button", name.capitalize()) for name in SUB_PAGES]
    found.append(PagePart("button", BUY))
    return found


def _sub_page(page: str, product: Product) -> list[PagePart]:
    if page == "description":
        return [PagePart("text", product.description)]
    return [PagePart("text", bullet) for bullet in product.bullets] if page == "features" else []


def _done(view: View, content: PageContent) -> list[PagePart]:
    bought = ("asin", content.product_of(view.product).asin, "options", json.dumps(view.options, ensure_ascii=False))
    unknown = ("attrs", "None", "category", "None", "query", "None", "product category", "None")
    target = ("asin", "options", "attrs", "price upper", "instuction text", "category", "product category", "query")
    lines = (
        "Thank you for shopping with us!",
        *("Your code:", "None", "(Paste it in your MTurk interface.)", "Purchased", *bought, *unknown, "Target"),
        *target,
        *("Goal", "None", "Reward", "Your score (min 0.0, max 1.0)", str(content.reward), "Reward Details", "None"),
    )
    return [PagePart("text", line) for line in lines]


# -- what can be clicked ---------------------------------------------------------------------------------------------


def clickables(page: Sequence[PagePart]) -> dict[str, PagePart]:
    """Return the clickable nodes by lower-case name: buttons, products, options; the last of equal names."""
    found: dict[str, PagePart] = {}
    for kind in ("button", "product", "option"):
        for node in page:
            if node.kind == kind:
                found[node.text if kind == "option" else node.text.lower()] = node
    return found


# -- how it looks ----------------------------------------------------------------------------------------------------


def _parts(**texts: str) -> list[PagePart]:
    return [PagePart(kind, text) for kind, text in texts.items()]


def render(
    page: Sequence[PagePart], view: View, mode: str, show_selected: bool = False, separator: str = SEPARATOR
) -> str:
    """Render a page.

    Args:
        mode: ``text`` (all texts, joined by the separator), ``text_rich`` (a line each, buttons marked) or ``html``.
    """
    if mode == "text":
        texts = [node.text.strip() for node in page]
        if show_selected and view.options:
            texts = [f"{t} (selected)" if _is_chosen(n, view) else t for t, n in zip(texts, page, strict=True)]
        return separator.join(filter(None, texts))
    return _rich(page, view) if mode == "text_rich" else _html(page, view)


def _is_chosen(node: PagePart, view: View) -> bool:
    return node.kind == "option" and view.options.get(node.option) == node.text


def _rich(page: Sequence[PagePart], view: View) -> str:
    clicked, lines = [], []
    for node in page:
        text = node.text.strip()
        if node.kind == "button":
            text = f"[button] {text} [button_]"
        elif node.kind == "product":
            word = "clicked button" if node.text in view.visited else "button"
            text = f"\n[{word}] {text} [button_]" if word == "button" else f"\n[{word}] {text} [clicked button_]"
        elif node.kind == "option":
            if node.text in view.options.values():
                clicked.append(f"You have clicked {text}.\n")
                text = f"  [clicked button] {text} [clicked button_]"
            else:
                text = f"  [button] {text} [button_]"
        if text:
            lines.append(text)
    return "".join(reversed(clicked)) + "\n".join(lines)


_TAGS = {
    "heading": "<h4>{text}</h4>",
    "text": "<p>{text}</p>",
    "title": '<h4 class="product-title">{text}</h4>',
    "price": '<h5 class="product-price">{text}</h5>',
    "button": '<form method="post"><button type="submit" class="btn">{text}</button></form>',
    "product": '<a class="product-link" href="/item_page/{text}">{text}</a>',
    "option": '<input type="radio" name="{option}" value="{text}"{checked}><label>{text}</label>',
}
_FRAME = "<!DOCTYPE html>\n<html>\n<body>\n{search}{body}\n</body>\n</html>\n"
_SEARCH_BAR = '<input type="text" id="search_input" name="search_query">\n'


def _html(page: Sequence[PagePart], view: View) -> str:
    body = [
        _TAGS[node.kind].format(
            text=html.escape(node.text.strip()),
            option=html.escape(node.option),
            checked=" checked" if _is_chosen(node, view) else "",
        )
        for node in page
        if node.text.strip()
    ]
    return _FRAME.format(search=_SEARCH_BAR if view.page == "index" else "", body="\n".join(body))
