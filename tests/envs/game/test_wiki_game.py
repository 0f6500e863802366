"""WikiGame: the encyclopedia made here, and a MediaWiki server (a local one that speaks its API)."""

import json
import urllib.parse

import pytest
from boards import boxed
from listening import Answers, listening

import rollenv
from rollenv import Unsolvable, UsageError
from rollenv.envs.game.wiki_game import GraphWiki, WikiUnavailable

PAGES = {
    "Bread": ("Bread is baked. It is made of flour.", ["Flour", "Oven", "End"]),
    "Flour": ("Flour is ground grain.", ["Bread", "Oven"]),
    "Oven": ("An oven is hot.", ["Flour"]),
    "End": ("Nothing links from here.", []),
}


class Api(Answers):
    """MediaWiki's action=query for PAGES; links come two at a time."""

    def do_GET(self):
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlparse(self.path).query))
        assert (query["action"], query["format"], query["formatversion"]) == ("query", "json", "2")
        if query.get("list") == "random":
            answer = {"query": {"random": [{"id": 1, "ns": 0, "title": t} for t in ("Bread", "Oven")]}}
        elif query["titles"] not in PAGES:
            answer = {"query": {"pages": [{"title": query["titles"], "missing": True}]}}
        else:
            answer = self.page(query["titles"], int(query.get("plcontinue", 0)))
        body = b"<html>broken" if "broken" in self.path else json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def page(self, title, first):
        text, links = PAGES[title]
        page = {
            "pageid": 1,
            "ns": 0,
            "title": title,
            "links": [{"ns": 0, "title": t} for t in links[first : first + 2]],
        }
        if first == 0:
            page["extract"] = text
        answer = {"query": {"pages": [page]}}
        if first + 2 < len(links):
            answer["continue"] = {"plcontinue": str(first + 2), "continue": "||"}
        return answer


@pytest.fixture(scope="module")
def url():
    with listening(Api) as address:
        yield f"http://{address}/w/api.php"


# -- the encyclopedia made here ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_every_page_can_be_reached_from_every_other(seed):
    wiki = GraphWiki(seed=seed)
    for title in wiki.titles:
        assert len(wiki.distances_from(title)) == len(wiki.titles) > 300
        assert title not in wiki.page(title).links
        assert len(wiki.page(title).links) >= 2


def test_the_encyclopedia_follows_its_seed():
    assert GraphWiki(seed=3).pages == GraphWiki(seed=3).pages != GraphWiki(seed=4).pages


def test_related_things_link_to_each_other():
    wiki = GraphWiki()
    assert "Lion" in wiki.page("Tiger").links
    assert {"Lemon", "Grape", "Tomato", "Banana"} & set(wiki.page("Apple").links)


@pytest.mark.parametrize("clicks", [1, 2])
def test_targets_are_near_enough(clicks):
    env = rollenv.make("game:WikiGame-v0", max_turns=clicks)
    for seed in range(30):
        env.reset(seed)
        assert 1 <= env.wiki.distances_from(env.path[0])[env.target] <= clicks


def test_rewards():
    env = rollenv.make("game:WikiGame-v0-easy")
    for seed in range(10):
        env.reset(seed)
        assert env.step("no box")[1:4] == (-0.2, False, False)
        observation, *end = env.step(boxed("Atlantis"))
        assert "no link to Atlantis" in observation
        assert end[:3] == [-0.2, False, False]
        while (result := env.step(env.oracle_action()))[1] == -0.05:
            assert result[4]["suffix"].startswith(f"Page: {env.page.title}\n")
        assert result[1:4] == (1.0, True, False)
        assert result[4]["success"] is True


def test_the_turn_limit_and_malformed_actions():
    env = rollenv.make("game:WikiGame-v0", max_turns=2)
    env.reset(0)
    env.step("no box")
    _, reward, terminated, truncated, info = env.step("no box")
    assert (reward, terminated, truncated, info["success"]) == (-0.2, False, True, False)


def test_titles_are_found_whatever_their_case():
    env = rollenv.make("game:WikiGame-v0")
    env.reset(0)
    link = env.page.links[0]
    env.step(boxed(link.upper()))
    assert env.path[-1] == link


def test_going_back_needs_freenav():
    plain, free = rollenv.make("game:WikiGame-v0"), rollenv.make("game:WikiGame-v0", variant="freenav")
    for env in (plain, free):
        env.reset(0)
        env.step(env.sample_random_action())
    assert plain.step(boxed("<PREV_PAGE>"))[1] == -0.2
    assert free.step(boxed("<PREV_PAGE>"))[1] == -0.05
    assert free.path == plain.path[:1]
    assert free.step(boxed("<PREV_PAGE>"))[1] == -0.2


@pytest.mark.parametrize(
    ("length", "summary"),
    [((10, "characters"), "Baked from..."), ((2, "words"), "Baked from"), ((1, "sentences"), None)],
)
def test_summaries_are_cut(length, summary):
    env = rollenv.make("game:WikiGame-v0", page_summary_length=length)
    full = "Baked from flour and sliced for sandwiches."
    assert env._summary("Bread") == (summary or full)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"backend": "kiwix"},
        {"variant": "eidetic"},
        {"page_summary_length": (3, "pages")},
        {"trawler_kwargs": {"port": 1}},
        {"backend": "mw", "trawler_kwargs": {"url": "file:///etc/passwd"}},
        {"max_turns": None},
    ],
)
def test_wrong_settings_are_refused(kwargs):
    with pytest.raises(UsageError):
        rollenv.make("game:WikiGame-v0", **kwargs)


# -- a MediaWiki server ------------------------------------------------------------------------------------------------


def test_playing_on_a_mediawiki_server(url):
    env = rollenv.make("game:WikiGame-v0", backend="mw", trawler_kwargs={"url": url, "query_delay_ms": 1})
    observation, info = env.reset(0)
    assert "from the page Bread to the page Oven" in observation
    assert "An oven is hot." in observation
    assert info["suffix"].endswith("- Flour\n- Oven\n- End"), "all parts of a long list of links are fetched"
    assert env.step(boxed("Milk"))[1] == -0.2
    assert env.step(boxed("Flour"))[1:3] == (-0.05, False)
    assert env.step(env.sample_random_action())[1] in (-0.05, 1.0)
    twin = rollenv.make("game:WikiGame-v0", backend="mw", trawler_kwargs={"url": url})
    twin.set_state(env.get_state())
    assert twin.render() == env.render()


def test_a_dead_end_loses(url):
    env = rollenv.make("game:WikiGame-v0", backend="mw", trawler_kwargs={"url": url})
    env.reset(0)
    _, reward, terminated, truncated, info = env.step(boxed("End"))
    assert (reward, terminated, truncated, info["success"]) == (-0.05, True, False, False)


def test_a_server_has_no_oracle(url):
    env = rollenv.make("game:WikiGame-v0", backend="mw", trawler_kwargs={"url": url})
    env.reset(0)
    with pytest.raises(Unsolvable):
        env.oracle_action()


@pytest.mark.parametrize("path", ["broken", None])
def test_a_server_that_does_not_answer_is_named(url, path):
    address = url.replace("api.php", path) if path else "http://127.0.0.1:9/api.php"
    env = rollenv.make("game:WikiGame-v0", backend="mw", trawler_kwargs={"url": address, "timeout": 2})
    with pytest.raises(WikiUnavailable, match=r"127\.0\.0\.1"):
        env.reset(0)


def test_a_missing_page_is_named(url):
    env = rollenv.make("game:WikiGame-v0", backend="mw", trawler_kwargs={"url": url})
    with pytest.raises(WikiUnavailable, match="Milk"):
        env.wiki.page("Milk")
