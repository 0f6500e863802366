"""Prompts through a tokenizer's chat template, with and without a tool, and the tokens of a batch of transitions."""

import json
import re

import gem
from datasets import Dataset
from gem.core import Env
from gem.envs.math_env import MathEnv
from gem.envs.registration import register
from gem.utils.constants import TERMINAL_STATE
from gem.wrappers.wrapper_factory import get_wrapper_fns
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_bytes = Tokenizer(
    models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
)
_bytes.pre_tokenizer, _bytes.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
TOKENIZER = PreTrainedTokenizerFast(
    tokenizer_object=_bytes, chat_template=TEMPLATE, eos_token="<|im_end|>", additional_special_tokens=["<|im_start|>"]
)


class Countdown(Env):
    """Say the numbers from three down; the state is in the suffix."""

    def __init__(self, **_):
        super().__init__()

    def reset(self, seed=None):
        super().reset(seed)
        self.left = 3
        return "Count down from 3, one number a turn.", {"suffix": f"[{self.left} left]"}

    def step(self, action):
        self.left -= 1
        if not self.left:
            return TERMINAL_STATE, 1.0, True, False, {}
        return f"You said {action}. Go on.", 0.0, False, False, {"suffix": f"[{self.left} left]"}


ROWS = Dataset.from_list([{"problem": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(5)])
register("own:Countdown", Countdown)
register("own:Sums", MathEnv, dataset=ROWS, use_mp=False, eval=True)


def made(env_id, names):
    env = gem.make(env_id)
    for wrapper in get_wrapper_fns(names, tokenizer=TOKENIZER):
        env = wrapper(env)
    return env


def prompts(env, actions):
    observation, _ = env.reset()
    shown, rewards = [observation], []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        rewards.append(float(reward))
        if terminated or truncated:
            break
        shown.append(observation)
    return shown, rewards


def tokens(shown, actions):
    """The ids of prompt and response of each transition, as a trainer concatenates them."""
    return [
        [len(TOKENIZER.encode(prompt)), len(TOKENIZER.encode(action + "<|im_end|>"))]
        for prompt, action in zip(shown, actions, strict=False)
    ]


said = ["3", "2", "1"]
result = {}
for names in ("concat_chat", "concat_chat,episode_tracking", "concat_chat_on_reset", "concat", "concat_with_action"):
    shown, rewards = prompts(made("own:Countdown", names), said)
    result[names] = [shown, rewards, tokens(shown, said)]
for names in ("concat_chat", "concat_chat_on_reset"):
    shown, rewards = prompts(made("own:Sums", names), ["\\boxed{1}"])
    result[f"sums, {names}"] = [shown, rewards]
actions = ["<python>print(0 + 1)</python> and more", "\\boxed{1}"]
shown, rewards = prompts(made("own:Sums", "python_tool,concat_chat"), actions)
result["sums, tool"] = [
    [re.findall(r"<\|im_start\|>(\w+)\n", one) for one in shown],
    rewards,
    [one.count("Code execution result: 1") for one in shown],
    [one.count("What is 0 + 1?") for one in shown],
]
result["sums, tool, text after the code"] = [one.count("and more") for one in shown]
print(json.dumps(result))
