"""Traces the page of a run, as Chromium lays it out, to an SVG: ``python docs/images/trace.py RUN OUT.svg``.

Boxes, borders, texts and drawings are where the browser put them; nothing is drawn by hand. The map of episodes, which
is a canvas, and everything below the first row of charts except the episode are left out.
"""

# ruff: noqa: E501

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from rollenv.report import write_report

TRACE = r"""() => {
  const hide = node => node?.style.setProperty("display", "none");
  document.querySelectorAll(".charts .card:nth-child(n+4), section details, .mapbox, p.small").forEach(hide);
  hide(document.querySelector(".mapbox").parentElement);
  hide([...document.querySelectorAll("section")].at(-1));
  document.querySelectorAll(".help").forEach(hide);
  const esc = text => text.replace(/[&<>"]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})[c]);
  const n = x => +x.toFixed(1), out = [], clear = "rgba(0, 0, 0, 0)";
  const height = Math.ceil(document.querySelector(".explorer").getBoundingClientRect().bottom + 24);
  const text = node => {
    const style = getComputedStyle(node.parentElement), range = document.createRange(), lines = [];
    for (let i = 0; i < node.length; i++) {
      range.setStart(node, i); range.setEnd(node, i + 1);
      const box = range.getBoundingClientRect(), last = lines.at(-1);
      if (!box.width) continue;
      if (last && Math.abs(last.y - box.bottom) < 3) last.text += node.data[i];
      else lines.push({x: box.left, y: box.bottom, h: box.height, text: node.data[i]});
    }
    const clip = node.parentElement.closest(".list")?.getBoundingClientRect();
    for (const line of lines) if (line.text.trim() && !(clip && line.y > clip.bottom - 4))
      out.push(`<text x="${n(line.x)}" y="${n(line.y - line.h * 0.24)}" fill="${style.color}" font-size="${style.fontSize}"` +
        ` font-weight="${style.fontWeight}" font-family="${style.fontFamily.includes("mono") ? "monospace" : "sans-serif"}"` +
        ` xml:space="preserve">${esc(line.text)}</text>`);
  };
  const walk = node => {
    if (node.nodeType === 3) return text(node);
    if (node.nodeType !== 1) return;
    const box = node.getBoundingClientRect(), style = getComputedStyle(node), list = node.closest(".list")?.getBoundingClientRect();
    if (!box.width || style.display === "none" || (list && node.className === "item" && box.bottom > list.bottom + 1)) return;
    if (node.tagName === "svg") {
      const copy = node.cloneNode(true), all = [copy, ...copy.querySelectorAll("*")], from = [node, ...node.querySelectorAll("*")];
      all.forEach((c, i) => {
        const s = getComputedStyle(from[i]);
        for (const name of ["fill", "stroke"]) if (c.tagName !== "svg" && c.tagName !== "g") c.setAttribute(name, s[name]);
        if (c.tagName === "text") { c.setAttribute("font-size", s.fontSize.replace("px", "")); c.setAttribute("font-family", "sans-serif"); }
      });
      for (const [name, value] of [["x", box.left], ["y", box.top], ["width", box.width], ["height", box.height]]) copy.setAttribute(name, n(value));
      return out.push(new XMLSerializer().serializeToString(copy));
    }
    const edge = parseFloat(style.borderTopWidth) ? style.borderTopColor : "none", back = style.backgroundColor === clear ? "none" : style.backgroundColor;
    const r = Math.min(parseFloat(style.borderTopLeftRadius) || 0, box.height / 2);
    if (!["BODY", "HTML"].includes(node.tagName) && (edge !== "none" || back !== "none"))
      out.push(`<rect x="${n(box.left)}" y="${n(box.top)}" width="${n(box.width)}" height="${n(box.height)}" rx="${r}" fill="${back}" stroke="${edge}"/>`);
    if (node.tagName === "SELECT") {
      out.push(`<text x="${n(box.left + 10)}" y="${n(box.bottom - 11)}" fill="${style.color}" font-size="14" font-family="sans-serif">${esc(node.selectedOptions[0].text)}</text>`);
    } else if (node.tagName === "INPUT") {
      if (node.placeholder) out.push(`<text x="${n(box.left + 10)}" y="${n(box.bottom - 11)}" fill="#8b949e" font-size="14" font-family="sans-serif">${esc(node.placeholder)}</text>`);
      if (node.type === "range") {
        const at = box.left + 8 + (box.width - 16) * (node.value - node.min) / (node.max - node.min || 1), y = (box.top + box.bottom) / 2;
        out.push(`<path d="M${n(box.left)} ${n(y)}H${n(box.right)}" stroke="#b8bfc7" stroke-width="5" stroke-linecap="round"/><circle cx="${n(at)}" cy="${n(y)}" r="8" fill="#0860c4"/>`);
      }
    } else node.childNodes.forEach(walk);
  };
  walk(document.body);
  const back = getComputedStyle(document.body).backgroundColor;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${innerWidth} ${height}"><title>${esc(document.title)}</title>` +
    `<rect width="${innerWidth}" height="${height}" fill="${back}"/>${out.join("\n")}</svg>\n`;
}"""


def main(run: str, out: str) -> None:
    """Write the page of ``run`` and trace it to ``out``."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = write_report([Path(run)], Path(folder) / "page.html")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1200, "height": 900})
        tab.goto(page.as_uri())
        tab.wait_for_selector(".stage")
        Path(out).write_text(tab.evaluate(TRACE), encoding="utf-8")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
