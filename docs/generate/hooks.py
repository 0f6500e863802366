"""MkDocs hooks: generated pages, and links out of ``docs/``."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))  # MkDocs loads a hook as a lone file

import cards
import documents
import keys
import reference

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(\]\(|src=\")([^)\s#\":]+)(?=[)#\"])")


def on_config(config: Any) -> Any:
    """Generate the pages and put them into the navigation, before the project documents."""
    sections = {
        "Environments": cards.pages(),
        "Recipes": documents.recipes(ROOT) | {keys.PAGE: keys.page()},
        "Figures": documents.figures(ROOT),
        "API reference": reference.pages(ROOT),
    }
    project = documents.project(ROOT)
    config["_generated"] = {path: text for pages in (*sections.values(), project) for path, text in pages.items()}
    order = {title: list(pages) for title, pages in sections.items()}
    order["API reference"] = reference.nav(ROOT)
    config.nav[-1:-1] = [{title: pages} for title, pages in order.items()]
    config.nav[-1]["Project"] += list(project)
    return config


def on_files(files: Any, config: Any) -> Any:
    for path, text in config["_generated"].items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links out of ``docs/`` to the pages of those files, so that they work in the repository and on the site."""
    here = posixpath.join("docs", posixpath.dirname(page.file.src_uri))
    if page.file.src_uri in config["_generated"]:
        here = documents.ORIGINS.get(page.file.src_uri, here)

    def moved(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, match[2]))
        known = {origin: path for path, origin in documents.SOURCES.items()}
        between = here.startswith("docs") and target.startswith("docs/") and target not in known
        if not (ROOT / target).exists() or between:
            return match[0]
        if target in known:
            found = known[target]
        elif target.startswith("docs/"):
            found = target.removeprefix("docs/")
        else:
            return f"{match[1]}{config.repo_url}/blob/main/{target}"
        return match[1] + posixpath.relpath(found, posixpath.dirname(page.file.src_uri) or ".")

    return _LINK.sub(moved, markdown)
