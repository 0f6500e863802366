"""The server of runs' pages."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from stored_runs import keep, page_of, trajectory

from rollenv.core.errors import UsageError
from rollenv.report import SMALL, find_runs, make_server
from rollenv.report.plain import LONGEST


@contextmanager
def serving(folder: Path) -> Iterator[Any]:
    with make_server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    keep(tmp_path / "runs" / "a <b>&'\"", trajectory(), trajectory(1, success=False))
    keep(tmp_path / "runs" / "deep" / "er", trajectory())
    keep(tmp_path / "outside", trajectory())
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "secret.js").write_text("secret")
    with serving(tmp_path / "runs") as server:
        yield server


def get(server: Any, path: str, **headers: str) -> tuple[int, str]:
    link = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    link.request("GET", path, headers=headers)
    answer = link.getresponse()
    text = answer.read().decode()
    link.close()
    return answer.status, text


def test_the_server_has_an_index_and_a_page_for_every_run(server: Any):
    assert list(find_runs(server.root)) == ["a <b>&'\"", "deep/er"]
    status, index = get(server, "/")
    assert status == 200
    assert "a &lt;b&gt;&amp;" in index
    assert "<b>" not in index
    name = quote("a <b>&'\"", safe="")
    assert name in index
    status, page = get(server, f"/runs/{name}/page")
    assert status == 200
    assert "seen 1" in page
    assert get(server, f"/compare?run={name}&run=deep%2Fer")[0] == 303
    assert "against" in get(server, f"/runs/{name}/deep%2Fer/page")[1]
    before = get(server, "/runs/deep%2Fer/page")[1]
    assert get(server, "/runs/deep%2Fer/page")[1] == before
    keep(server.root / "deep" / "er", trajectory(77))
    assert '"seed":77' in get(server, "/runs/deep%2Fer/page")[1], "it is made anew when its run has changed"


def test_runs_with_seeds_are_listed_with_a_page_of_their_own(server: Any):
    for seed in range(2):
        folder = server.root / "tools-seeds-1" / f"seed-{seed}"
        folder.mkdir(parents=True)
        rows = [{"iteration": at, "eval/success": 0.25 + 0.5 * at} for at in (0, 1)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    listed = [{"setting": "tools", "seed": seed, "folder": f"seed-{seed}"} for seed in range(2)]
    (server.root / "tools-seeds-1" / "sweep.json").write_text(json.dumps({"runs": listed}))
    begun = server.root / "begun"
    begun.mkdir()
    (begun / "sweep.json").write_text(json.dumps({"runs": [{"setting": "x", "seed": 0, "folder": "seed-0"}]}))
    assert {"tools-seeds-1", "tools-seeds-1/seed-0", "tools-seeds-1/seed-1"} <= {*find_runs(server.root)}
    index = get(server, "/")[1]
    assert "training, 2 seeds" in index
    assert "25.0 % → 75.0 %" in index
    assert "/runs/begun/" not in index
    assert get(server, "/runs/begun/page")[0] == 404
    page = get(server, "/runs/tools-seeds-1/page")[1]
    assert "Means of 2 seeds" in page
    with (server.root / "tools-seeds-1" / "seed-1" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"iteration": 2, "eval/success": 0.875}) + "\n")
    assert "0.875" in get(server, "/runs/tools-seeds-1/page")[1], "it is made anew when one of its runs has changed"


def test_the_server_answers_to_its_own_name_only(server: Any):
    assert get(server, "/", Host="evil.example:80")[0] == 403
    assert get(server, "/", Host=f"localhost:{server.server_address[1]}")[0] == 200
    assert server.is_private
    assert server.url.startswith("http://127.0.0.1:")
    with pytest.raises(UsageError, match="serve at"):
        make_server(server.root, "127.0.0.1", server.server_address[1])


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.js", "/runs/../page", "/runs/..%2F..%2Foutside/page", "/runs/link/page", "/runs/deep/page",
        "/runs/page", "/runs/deep%2Fer/1_files/..%2F..%2Fsecret.js", "/runs/deep%2Fer/../../secret.js",
        "/runs/%00/page", "/runs//page", "/runs/deep%2Fer/%2e%2e_files/0.js", "//etc/passwd",
        "/runs/deep%2Fer/1_files/٣.js", "/compare",
    ],
)  # fmt: skip
@pytest.mark.combinations
def test_the_server_gives_nothing_but_runs(server: Any, path: str):
    get(server, "/runs/deep%2Fer/page")
    status, text = get(server, quote(path, safe="/%?"))
    assert status in (404, 303)
    assert "secret" not in text


def test_a_large_run_is_served_with_its_shards_and_says_when_they_are_gone(browser: Any, tmp_path: Path):
    run = tmp_path / "big"
    keep(run, *(trajectory(i, error="x" * LONGEST, turns=10) for i in range(SMALL // LONGEST + 10)))
    problems: list[str] = []
    tab = browser.new_page()
    tab.on("console", lambda message: problems.append(message.text))
    with serving(tmp_path) as server:
        tab.goto(server.url)
        tab.get_by_role("link", name="big").click()
        tab.wait_for_selector(".board svg")
        assert problems == []
    page = page_of(run)
    shutil.rmtree(run / "report_files")
    tab.goto(page.as_uri())
    tab.wait_for_selector(".player .fail")
    assert "Keep that folder beside the page" in tab.inner_text(".player .fail")
    tab.close()
