"""Verifiable rewards: domains, their rewards and evaluations, the warm-up for them, and tools in conversations."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rollenv import UsageError, Wrapper
from rollenv.agents.engines.base import Sampling
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import ChatPrompt, StepPrompt
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize, WarmUp
from rollenv.agents.tiny.warm_up import Scene, _chat_ids, _demonstrations, _lessons
from rollenv.cli.train import _conclude
from rollenv.envs.data.rows import load_rows
from rollenv.report import open_run, summary
from rollenv.rollout.types import Task, Trajectory, Turn
from rollenv.trainers.config import load_config
from rollenv.trainers.rewards.configured import DomainRewards
from rollenv.trainers.run_dir import RunDir, read_rows
from rollenv.trainers.sources import SourcedTask
from rollenv.trainers.trainer import Trainer, TrainingResult

SIZE = {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64, "context": 640, "vocabulary": 330}
SMALL = [
    *(f"model.size.{name}={value}" for name, value in SIZE.items()),
    *("model.warm_up.episodes=60", "model.warm_up.steps=20", "model.warm_up.batch_size=16"),
    *("iterations=1", "rollout.groups_per_batch=4", "rollout.group_size=4", "eval.episodes=6"),
]


# -- settings ----------------------------------------------------------------------------------------------------------


def configured(tmp_path: Path, *domains: str) -> Any:
    """A mixture with these rewards."""
    file = tmp_path / "mine.toml"
    parts = "".join(
        f'[[tasks.parts]]\nname="{name}"\nenv={{id="{env}"}}\n'
        for name, env in (("sums", "math:Arithmetic-v0-digit"), ("code", "code:OneLine-v0-easy"))
    )
    entries = "".join(f"[[rewards.domains]]\n{one}\n" for one in domains)
    file.write_text(f'[env]\nid="math:Arithmetic-v0-digit"\n[tasks]\nkind="mixture"\n{parts}{entries}')
    return load_config(str(file))


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ('kind="format"\npatern="x"', "'rewards.domains.pattern'"),
        ('kind="judg"', r"rewards.domains.0.kind .*'judge'"),
        ('kind="judge"\nurl="u"\nmodel="m"\npattern="x"', "pattern .*kind='judge'"),
        ('kind="format"\npattern="("', "regular"),
        ('kind="format"\npattern="x"\nmissed=0', "missed"),
        ('kind="format"\npattern="x"\nweight=0', "weight"),
        ('kind="overlong"\nlongest=4\nbuffer=3', "not 'overlong'"),
        ('kind="instructions"\nchecks=[{id="a"}]', "instruction 'a'"),
        ('domain="sms"\nkind="format"\npattern="x"', "'sms'.*sums"),
    ],
)
def test_a_reward_that_cannot_be_is_refused_with_its_key(tmp_path, entry, says):
    with pytest.raises(UsageError, match=says):
        configured(tmp_path, entry)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ('name="a"|name="a"', "'a'"),
        ("|", "'math:Arithmetic-v0-digit'"),
        ('name="a/b"|', "a/b"),
        ('name="eval"|', "'eval'"),
    ],
)
def test_parts_whose_metrics_would_be_one_are_refused(tmp_path, names, says):
    """The first of two parts of one name was left out, silently."""
    for section in ("tasks", "eval"):
        if section == "eval" and "'eval'" in says:
            continue
        env = 'env={id="math:Arithmetic-v0-digit"}\n'
        parts = "".join(f"[[{section}.parts]]\n{name}\n{env}" for name in names.split("|"))
        kind = '[tasks]\nkind="mixture"\n' if section == "tasks" else ""
        (tmp_path / "r.toml").write_text(f'[env]\nid="math:Arithmetic-v0-digit"\n{kind}{parts}')
        with pytest.raises(UsageError, match=says if "/" not in says else r"a/b|pattern"):
            load_config(str(tmp_path / "r.toml"))


@pytest.mark.parametrize("row", ["[1, 2]", "3", '"text"', "null", "{", "[" * 100_000])
def test_a_line_that_is_no_row_is_named(tmp_path, row):
    file = tmp_path / "a_train.jsonl"
    file.write_text('{"problem": "3 + 4", "answer": "7"}\n' + row + "\n")
    with pytest.raises(UsageError, match=r"a_train\.jsonl, line 2"):
        load_rows(str(file), "train")


def test_a_reward_that_others_leave_nothing_for_is_refused(tmp_path):
    first = 'domain="*s"\nkind="format"\npattern="x"'
    with pytest.raises(UsageError, match="'sums'"):
        configured(tmp_path, first, 'domain="sums"\nkind="format"\npattern="y"')
    assert configured(tmp_path, first, 'domain="code:*"\nkind="format"\npattern="y"')


def said(text: str, env_id: str, *origin: str) -> Trajectory:
    task: Task = SourcedTask(env_id, 1, origin=origin) if origin else Task(env_id, 1)
    return Trajectory(task, [Turn((1,), (2, 3, 4), (0.0,) * 3, 0.0, text, "")], "terminated")


@pytest.mark.parametrize(
    ("trajectory", "paid"),
    [
        (said("yes", "math:Arithmetic-v0-digit", "sums"), 0.0),
        (said("no", "math:Arithmetic-v0-digit", "sums"), -2.0),
        (said("no", "code:OneLine-v0-easy", "code"), -1.5),
        (said("no", "qa:Other", "elsewhere"), 0.0),
    ],
)
def test_each_domain_gets_the_sum_of_its_own_rewards(tmp_path, trajectory, paid):
    rewards = DomainRewards(
        configured(
            tmp_path,
            'domain="sums"\nkind="format"\npattern="yes"\nweight=2',
            'domain="code:*"\nkind="format"\npattern="yes"',
            'domain="code:*"\nkind="format"\npattern="maybe"\nweight=0.5',
        )
    )
    assert asyncio.run(rewards(trajectory)) == pytest.approx(paid)
    totals = [value for key, value in rewards.metrics().items() if key in ("added/sums", "added/code:*")]
    assert sum(totals) == pytest.approx(paid)
    assert rewards.metrics().keys() == {"time/reward"}, "means are of what was added since the last call"


def test_a_judge_without_its_key_says_which(tmp_path, monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    config = configured(tmp_path, 'kind="judge"\nurl="http://127.0.0.1:1/v1"\nmodel="m"\nkey_variable="NO_SUCH_KEY"')
    with pytest.raises(UsageError, match="NO_SUCH_KEY"):
        DomainRewards(config)


# -- the warm-up -------------------------------------------------------------------------------------------------------


def demonstrations(scenes: list[Scene], prompt: StepPrompt | ChatPrompt, **settings: Any) -> list[Any]:
    lessons = _lessons(scenes, prompt, WarmUp(**settings), 0)
    return [_demonstrations(lesson, lambda *_: None) for lesson in lessons]


def test_all_parts_of_a_mixture_are_shown_in_their_shares():
    scenes = [Scene("math:Arithmetic-v0-digit", share=3), Scene("code:OneLine-v0-easy", {"sandbox": "ast"}, share=1)]
    sums, code = demonstrations(scenes, StepPrompt("{state}", chat=False), episodes=40)
    assert (len(sums), len(code)) == (30, 10)
    assert all(turn.expert.isdigit() for turn in sums)
    assert all("x" in turn.expert for turn in code)


def test_with_one_turn_nothing_is_judged(monkeypatch):
    from rollenv.envs.code.one_line import OneLine

    monkeypatch.setattr(OneLine, "_judge", lambda *_: pytest.fail("judged"))
    (shown,) = demonstrations(
        [Scene("code:OneLine-v0-easy")], StepPrompt("{state}", chat=False), episodes=5, turns=1, noise=0.5
    )
    assert len(shown) == 5


@pytest.fixture(scope="module")
def chatting() -> LocalAgent:
    """A model with random weights that has conversations."""
    corpus = ["What is 3 + 4? 12", "<tool_call> expression calculator arguments", "too low, too high"] * 3
    tokenizer = build_tokenizer(corpus, 330, chat=True)
    return LocalAgent(build_model(TinySize(**SIZE), tokenizer, 0), tokenizer, ChatPrompt("Be brief."), Sampling(1.0, 6))


def test_the_tiny_tokenizer_keeps_its_chat_template(chatting, tmp_path):
    chatting.save(tmp_path)
    again = LocalAgent.load(tmp_path)
    messages = [{"role": "user", "content": "3 + 4 <|user|>"}, {"role": "assistant", "content": "7"}]
    texts = [a.tokenizer.apply_chat_template(messages, tokenize=False) for a in (chatting, again)]
    assert texts[0] == texts[1] == "<|user|>3 + 4 <|user|><|endoftext|><|assistant|>7<|endoftext|>"
    assert again.tokenizer.encode(texts[0]) == chatting.tokenizer.encode(texts[0])
    assert again.prompt == ChatPrompt("Be brief.")


def test_demonstrated_conversations_read_like_the_template(chatting):
    (shown,) = demonstrations([Scene("tool:Calculator-v0")], chatting.prompt, episodes=5, noise=0.5)
    several = [turn for turn in shown if len(turn.prompt) > 1]
    assert several
    end = chatting.tokenizer.eos_token_id
    for turn in several:
        ids = _chat_ids(chatting, turn.prompt, lambda text: (*chatting.tokenizer.encode(text), end))
        messages = [{"role": role, "content": text} for role, text, *_ in (("system", "Be brief."), *turn.prompt)]
        wanted = chatting.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert chatting.tokenizer.decode(ids) == wanted


def test_a_conversation_that_does_not_fit_names_the_keys(chatting):
    with pytest.raises(UsageError, match=r"model.size.context.*model.warm_up.turns"):
        _chat_ids(chatting, (("user", "3 + 4 " * 400, ()),), chatting.tokenizer.encode)


class CallsPython(Wrapper):
    """Its expert works a sum out with the Python tool, then answers."""

    def oracle_action(self):
        if self.env.tool_use_counter:
            return self.env.oracle_action()
        return f"<python>print({self.env.unwrapped.task})</python>"


PYTHON = {"python_tool_no_int_reward": {"max_tool_uses": 2}, f"{__name__}:CallsPython": {}}


@pytest.mark.slow
def test_what_a_tool_says_is_the_tools_in_a_demonstration(chatting):
    scene = Scene("math:Arithmetic-v0-digit", wrappers=PYTHON)
    (shown,) = demonstrations([scene], chatting.prompt, episodes=2, noise=0.0, wandering=0.0)
    assert [len(turn.prompt) for turn in shown] == [1, 3, 1, 3]
    roles, texts, _ = zip(*shown[1].prompt, strict=True)
    assert roles == ("user", "assistant", "tool")
    assert texts[2].split() == ["Code", "execution", "result:", shown[1].expert]


# -- runs --------------------------------------------------------------------------------------------------------------


def fit(recipe: str, path: Path, *overrides: str) -> list[dict[str, float]]:
    config = load_config(recipe, [*SMALL, *overrides])
    run = RunDir.create(config.model_copy(update={"run_dir": str(path)}), recipe)
    with Trainer(config, run) as trainer:
        trainer.fit()
    return read_rows(run.metrics_file)


def test_the_page_and_the_last_lines_tell_domains_apart(tmp_path, capsys):
    """The mean over the domains of training stood beside the evaluation of one of them, which looked like a gap."""
    (tmp_path / "config.json").write_text('{"env": {"id": "math:Arithmetic-v0-digit"}, "iterations": 5}')
    rows = [
        {"iteration": 0, "eval/success": 0.1, "eval/low": 0.0, "eval/high": 0.2, "eval/reward": 0.1, "eval/turns": 1.0}
        | {"eval/code/success": 0.2, "eval/code/low": 0.1, "eval/code/high": 0.3},
        {"iteration": 5, "eval/success": 0.5, "eval/low": 0.4, "eval/high": 0.6, "eval/reward": 0.5, "eval/turns": 1.0}
        | {"eval/code/success": 0.7, "eval/code/low": 0.6, "eval/code/high": 0.8, "code/success": 0.6, "success": 0.4},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = open_run(tmp_path)
    first = summary.curves(run.metrics, run.env_id)[0]
    assert first["title"] == "Success by domain"
    assert {one["key"] for one in first["series"]} == {"eval/success", "eval/code/success", "code/success"}
    charts = {chart["title"]: chart for chart in summary.curves(run.metrics, run.env_id)}
    assert "Success" not in charts
    assert {one["name"] for one in charts["Reward per episode"]["series"]} == {"math:Arithmetic-v0-digit, evaluation"}
    (table,) = summary.tables(run)
    assert [row[0] for row in table["rows"]] == ["domain", "math:Arithmetic-v0-digit", "code"]
    assert [row[2] for row in table["rows"][1:]] == ["50.0 % (40 to 60)", "70.0 % (60 to 80)"]
    assert not {"eval/code/low", "eval/code/high"} & {chart["title"] for chart in summary.curves(run.metrics)}
    _conclude(RunDir(tmp_path), TrainingResult(rows[0], rows[1], 1.0, tmp_path), 2.0)
    assert "of code" in capsys.readouterr().out


@pytest.mark.integration
def test_a_run_tells_success_and_rewards_by_domain(tmp_path):
    rows = fit("rlvr", tmp_path / "run", "rollout.workers=1")
    for row in rows:
        assert {"eval/success", "eval/low", "eval/code/success", "eval/code/high"} <= row.keys()
    assert {"sums/success", "sums/reward", "code/success", "code/reward"} <= rows[1].keys()
    assert rows[1]["sums/drawn"] == rows[1]["code/drawn"] == 2
    assert -0.1 <= rows[1]["added/code"] <= 0
    assert "added/sums" not in rows[1]
    episodes = [json.loads(line) for line in (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()]
    assert {e["task"]["env_id"] for e in episodes} == {"math:Arithmetic-v0-digit", "code:OneLine-v0-easy"}


@pytest.mark.slow
def test_tools_are_trained_as_conversations(tmp_path):
    rows = fit("rlvr_tools", tmp_path / "run", "loss.entropy=0.01", "loss.entropy_samples=all")  # also of equal rewards
    assert rows[1]["turns"] > 1
    assert rows[1]["trained_samples"] == 16, "a sample is an episode"
    assert rows[1]["ratio"] == pytest.approx(1, abs=1e-4), "trained on are the tokens that were drawn"


REAL = ("rlvr_gsm8k", "rlvr_math", "rlvr_code")
DATA = {
    "gsm8k/train.jsonl": {"question": "3 + 4?", "answer": "So #### 7"},
    "gsm8k/test.jsonl": {"question": "3 + 5?", "answer": "So #### 8"},
    "math12k/train.jsonl": {"problem": "3 + 4?", "answer": "7"},
    "math/math500_test.jsonl": {"problem": "3 + 5?", "answer": "8"},
    "mbpp/mbpp.jsonl": [
        {"task_id": i, "text": "Write f.", "code": "def f(): return 1", "test_list": ["assert f() == 1"]}
        for i in (*range(11, 511), 601)
    ],
    "humaneval/HumanEval.jsonl": {
        "task_id": "HumanEval/0",
        "prompt": "def f():\n",
        "canonical_solution": "    return 1\n",
        "test": "def check(f):\n    assert f() == 1\n",
        "entry_point": "f",
    },
}


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("recipe", REAL)
def test_the_recipes_for_real_models_can_be_looked_at(recipe, rollenv_command, tmp_path, monkeypatch):
    for name, rows in DATA.items():
        file = tmp_path / "data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in (rows if isinstance(rows, list) else [rows] * 500)))
    monkeypatch.setenv("ROLLENV_DATA", str(tmp_path / "data"))
    done = rollenv_command("train", recipe, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "nothing was started" in done.stdout


@pytest.mark.slow
@pytest.mark.integration
def test_success_rises(tmp_path):
    """About twenty seconds of one core."""
    alone = ["tasks.kind=seeds", "eval.parts=[]", "rewards.domains=[]", "rollout.workers=inline", "seed=1"]
    warm_up = {"episodes": 1000, "lr": 5e-3, "steps": 250, "batch_size": 24}
    config = load_config(
        "rlvr",
        [
            *(*alone, "model.size.hidden=48", "rollout.max_new_tokens=1", "iterations=40", "eval.every=40"),
            *(f"model.warm_up.{name}={value}" for name, value in warm_up.items()),
            *("eval.episodes=300", "rollout.groups_per_batch=32", "rollout.group_size=16"),
            "optimizer.minibatch_sequences=16",
        ],
    )
    run = RunDir.create(config.model_copy(update={"run_dir": str(tmp_path / "run")}), "rlvr")
    with Trainer(config, run) as trainer:
        result = trainer.fit()
    assert result.after["eval/low"] > result.before["eval/high"]
