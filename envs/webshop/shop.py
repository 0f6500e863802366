"""A shop: products, search engine and goals, shared by all environments of a process."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TypeVar

import numpy as np

from rollenv.core.cache import cached
from rollenv.core.errors import MissingData
from rollenv.core.needs import data_root
from rollenv.envs.webshop.catalogue import Products, build_catalogue
from rollenv.envs.webshop.files import ShopFiles
from rollenv.envs.webshop.goals import Goals
from rollenv.envs.webshop.pages import PageContent, View
from rollenv.envs.webshop.product import Product
from rollenv.envs.webshop.reward import RewardRules
from rollenv.envs.webshop.search import INDEX_FORMAT, SearchEngine, rank_in, write_index

_NONE = np.zeros(0, np.int32)
AnyShop = TypeVar("AnyShop", bound="Shop")


class Shop:
    """The immutable data that environments share."""

    def __init__(self, catalogue: Products, index: Path, window: int = 10):
        self.catalogue, self.window = catalogue, window
        self.engine = SearchEngine(catalogue, index)
        self.goals = functools.cache(self._goals)
        self.best_search = functools.lru_cache(maxsize=1 << 14)(self._best_search)

    def _goals(self, kind: str, price_seed: int, rules: RewardRules) -> Goals:
        return Goals(self.catalogue, kind, price_seed, rules)

    def content(self, view: View, instruction: str, reward: float = 0.0) -> PageContent:
        """Collect the content of a page; the reward, in [0, 1], is shown on the last page."""
        results = self.engine.search(view.keywords) if view.page == "results" else _NONE
        return PageContent(instruction, results, self.catalogue.product, self.window, reward)

    def _best_search(self, number: int) -> str | None:
        """Return the expert's best keywords for a product; None if no search finds it."""
        product = self.catalogue.product(number)
        best: tuple[int, str] | None = None
        for keywords in _searches(product):
            rank = rank_in(self.engine.search(keywords), number)
            if rank is not None and (best is None or rank < best[0]):
                best = rank, keywords
                if best[0] < self.window:
                    break
        return best[1] if best else None


def _searches(product: Product) -> list[str]:
    """Return an expert's searches, in lower case and on one line, like keywords."""
    long = [product.title, f"{product.title} {product.description[:200]}", product.document()[:2000]]
    listed = [f"<q> {product.query}", *(f"<a> {attribute}" for attribute in product.attributes)]
    found = (" ".join(text.lower().split()) for text in long + listed)
    return list(dict.fromkeys(text for text in found if text and "]" not in text.rstrip("]")))


def shop_folder(data: str | Path | None) -> Path:
    """Return the folder of the data set, by default ``$ROLLENV_DATA/webshop``."""
    root = data_root()
    folder = Path(root) / "webshop" if root else None
    if data is not None:
        folder = Path(data)
    if folder is None or not folder.is_dir():
        where = "$ROLLENV_DATA does not name a folder" if folder is None else f"there is no folder {folder}"
        raise MissingData(
            f"the data set webshop is not here: {where}. Get items_shuffle.json, items_ins_v2.json and "
            "items_human_ins.json as https://github.com/princeton-nlp/WebShop says, and put them into "
            "$ROLLENV_DATA/webshop"
        )
    return folder


def open_shop(data: str | Path | None = None, num_products: int | None = None) -> Shop:
    """Return the shop of WebShop's files, built on first use and shared."""
    files = ShopFiles.find(shop_folder(data), num_products)
    stamps = tuple((path, stat.st_mtime_ns, stat.st_size) for path in files.paths for stat in (path.stat(),))
    return _open(files, num_products, stamps)


@functools.lru_cache(maxsize=4)
def _open(files: ShopFiles, num_products: int | None, stamps: tuple[tuple[Path, int, int], ...]) -> Shop:
    """Open a shop, cached by the modification time and size of its files."""
    return shop_from(build_catalogue(files, num_products))


def shop_from(folder: Path, window: int = 10, kind: type[AnyShop] = Shop) -> AnyShop:  # type: ignore[assignment]
    """Open the shop of a cached catalogue; its search index is built on first use."""
    catalogue = Products(folder)
    index = cached("webshop", f"{folder.name}-index{INDEX_FORMAT}", lambda new: write_index(catalogue, new))
    return kind(catalogue, index, window)
