"""InterCode's Bash: its reward, golds, stored turns of GPT-4, and git that nobody can turn."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rollenv
from rollenv.core.env import Env
from rollenv.core.errors import MissingData, UsageError
from rollenv.core.tools.calls import write_calls
from rollenv.plugins.suites.os.intercode import InterCodeBackend, gold_outcome, outcome, queries, start
from rollenv.plugins.suites.os.intercode_reward import Outcome, changes, reward, similarity

Data = Callable[[str], Path]
_ROOT = "agentic/intercode"


@pytest.fixture(scope="module")
def env() -> Iterator[Env]:
    try:
        one = rollenv.make("os:InterCode-Bash-v0")
    except MissingData as error:
        pytest.skip(str(error))
    yield one
    one.close()


def bash(command: str) -> str:
    return write_calls([("execute_bash", {"command": command})])


SUBMIT = write_calls([("submit", {})])


def play(env: Env, index: int, *commands: str) -> float:
    env.reset(0, options={"index": index})
    for command in commands:
        env.step(bash(command))
    _, score, terminated, _, info = env.step(SUBMIT)
    assert terminated
    assert info["success"] == (score > 0.995)
    assert info["metrics"]["partial"] == pytest.approx(score)
    return score


def done(output: str = "", status: tuple[tuple[str, str], ...] = (), **hashes: str) -> Outcome:
    return Outcome(output, frozenset(status), hashes)


def test_the_reward_is_upstreams_formula() -> None:
    new, other = ("a", "??"), ("b", "M")
    assert reward(done("x y"), done("x y")) == pytest.approx(1.0)
    assert reward(done("same words"), done("other text")) == pytest.approx(0.67)
    # one difference: round(0.33 * (1 - erf(1)), 2) = 0.05
    assert reward(done("", (other,)), done("")) == pytest.approx(0.01 + 0.05 + 0.33 + 0.33)
    assert reward(done("", (other, new), a="1"), done("", (new,), a="2")) == pytest.approx(0.01 + 0.05 + 0 + 0.33)
    assert reward(done("", (new, ("c", "A")), a="1", c="3"), done("", (new, ("c", "A")), a="1", c="4")) == (
        pytest.approx(0.01 + 0.33 + 0.17 + 0.33)
    )
    assert reward(done("", (("b", "D"),)), done("", (("b", "M"),))) == pytest.approx(0.01 + 0.33 + 0.33, abs=0.01)


def test_similarity_is_the_cosine_of_tf_idf() -> None:
    # Weights over two texts: 1 for a word of both, ln(3 / 2) + 1 for a word of one.
    once = math.log(1.5) + 1
    assert similarity("the cat", "THE dog") == pytest.approx(1 / (1 + once**2))
    assert similarity("aa aa bb", "aa") == pytest.approx(2 / math.sqrt(4 + once**2))
    assert similarity("a b\n", "a b\n") == 1.0  # no words of two letters: equal texts
    assert similarity("a", "b") == similarity("", "aa") == 0.0
    assert similarity("é_1 x", "É_1") == pytest.approx(1.0)


def test_similarity_is_scikit_learns() -> None:
    text = pytest.importorskip("sklearn.feature_extraction.text")
    rng = random.Random(0)
    words = ["ab", "abc", "a", "x1", "Ab", "9.5", "été", "-", "/etc/x", "\n"]
    for _ in range(200):
        pair = [" ".join(rng.choices(words, k=rng.randrange(12))) for _ in range(2)]
        try:
            table = text.TfidfVectorizer().fit_transform(pair)
            expected = (table * table.T).toarray()[0][1]
        except ValueError:
            expected = float(pair[0] == pair[1])
        assert similarity(*pair) == pytest.approx(expected)


def test_lines_of_git() -> None:
    assert changes("?? a b/c\0 M x\0D  y\0") == {("a b/c", "??"), ("x", "M"), ("y", "D")}
    assert changes("") == frozenset()


def test_golds(env: Env) -> None:
    systems = [query.system for query in env.unwrapped.queries]
    assert [systems.count(system) for system in (1, 2, 3, 4)] == [60, 53, 60, 27]
    env.reset(0, options={"index": systems.index(3)})
    env.step(env.oracle_action())
    assert env.step(env.oracle_action())[1] == pytest.approx(1.0)


def index_of(env: Env, text: str) -> int:
    return next(i for i, query in enumerate(env.unwrapped.queries) if text in query.gold)


@pytest.mark.integration
def test_what_changes_counts_and_git_cannot_be_turned(env: Env) -> None:
    index = 0  # a query that changes nothing
    gold = env.unwrapped.queries[index].gold
    assert play(env, index, "touch /etc/new /root/new", gold) == pytest.approx(1.0)
    hidden = (
        "touch /testbed/new; cd /; echo testbed | tee -a .gitignore > /testbed/.gitignore; git add -A; "
        "git commit -qm x; git config status.showUntrackedFiles no; echo '*' > .git/info/exclude; "
        "ln -sf /bin/true /usr/local/bin/git; ln -sf /bin/true /usr/bin/git"
    )
    assert play(env, index, hidden, gold) == pytest.approx(0.72)


def test_commands_stand_alone_but_for_the_folder(env: Env) -> None:
    env.reset(0, options={"index": 0})

    def say(command: str) -> str:
        return env.step(bash(command))[4]["tool_responses"][0]

    assert say("cd /testbed/dir1") == "(no output)"
    assert say("x=1; cd /tmp; pwd") == "/tmp\n"
    assert say('pwd; echo "[$x]" >&2') == "/testbed/dir1\n[]\n"
    assert say("cd ../dir2/./subdir1") + say("pwd") == "(no output)/testbed/dir2/subdir1\n"
    assert "No such file" in say("cd /nowhere")
    assert say("rm -rf /testbed/dir2; true") == "(no output)"
    assert "No such file" in say("pwd")
    assert say("cd") == "(no output)"
    assert say("pwd") == "/root\n"


@pytest.mark.integration
def test_the_published_turns(data: Data) -> None:
    root = data(_ROOT)
    stored = json.loads(data(f"{_ROOT}/results/bash/gpt-4/ic_bash_multiturn_gpt-4_10_turns_fs_2.json").read_text())
    same = turns = 0
    for key in ("0", "1", "4", "5"):  # double quotes that break, files that are removed
        task = stored[key]
        history = task["turn_history"]
        query = next(each for each in queries(root) if each.system == 2 and each.text == task["query"])
        gold = gold_outcome(root, query, as_published=True)
        backend = InterCodeBackend(start(root, 2), query, as_published=True)
        with backend.machine:
            for action, told in list(zip(history["actions"], history["rewards"], strict=True))[:2]:
                ours = reward(outcome(backend.machine, backend.execute(action).text), gold)
                same, turns = same + math.isclose(ours, told, abs_tol=1e-6), turns + 1
    assert same >= turns - 1


@pytest.mark.parametrize("rows", ["{", "[{}]", "[1]"])
def test_bad_files(rows: str, tmp_path: Path) -> None:
    (tmp_path / "nl2bash").mkdir()
    (tmp_path / "nl2bash" / "nl2bash_fs_1.json").write_text(rows)
    with pytest.raises(UsageError, match=r"nl2bash_fs_1\.json"):
        queries(tmp_path)
