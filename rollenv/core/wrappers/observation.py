"""The history of the episode as the observation, as text or through a chat template."""

from __future__ import annotations

from typing import Any, Protocol

from rollenv.core.env import Env, ResetResult, StepResult, Wrapper
from rollenv.core.errors import UsageError
from rollenv.core.pictures import MARK, Picture, picture, pictures


class Tokenizer(Protocol):
    """The method of a Hugging Face tokenizer that the wrapper calls."""

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> Any:
        """Render a conversation with the model's chat template."""


class ObservationWrapper(Wrapper):
    """Shows the history of the episode, or its last turns, as the observation.

    ``info["prefix"]`` is put before the history, ``info["suffix"]`` after it. The first observation, which has the
    instructions, is always shown.

    Args:
        include_action: show the actions too. ``info["parsed_action"]`` replaces the raw action if there is one.
        include_chat_template: render turns with the tokenizer's chat template (roles user, tool, assistant). True by
            default if there is a tokenizer and ``apply_chat_template_on_reset`` is not set.
        apply_chat_template_on_reset: render only the first observation with the template, and append the rest as text.
        max_history_length: number of past turns that are shown; None for all.
    """

    def __init__(
        self,
        env: Env,
        include_action: bool = True,
        include_chat_template: bool | None = None,
        apply_chat_template_on_reset: bool = False,
        max_history_length: int | None = None,
        tokenizer: Tokenizer | None = None,
    ):
        super().__init__(env)
        if include_chat_template is None:
            include_chat_template = tokenizer is not None and include_action and not apply_chat_template_on_reset
        if include_chat_template and apply_chat_template_on_reset:
            raise UsageError("apply the chat template to every turn or only on reset, not both")
        if (include_chat_template or apply_chat_template_on_reset) and tokenizer is None:
            raise UsageError("a chat template needs a tokenizer; pass tokenizer=")
        if include_chat_template and not include_action:
            raise UsageError("a chat template needs the actions (include_action=True): they are the assistant's turns")
        if max_history_length is not None and max_history_length < 0:
            raise UsageError(f"max_history_length must be None or at least 0, got {max_history_length}")
        self.include_action, self.include_chat_template = include_action, include_chat_template
        self.apply_chat_template_on_reset, self.max_history_length = apply_chat_template_on_reset, max_history_length
        self.tokenizer = tokenizer
        self._observations: list[tuple[str, bool]] = []
        self._pictures: list[list[Picture]] = []
        self._actions: list[str] = []
        self._text = ""

    def reset(self, seed: int | None = None, **kwargs: Any) -> ResetResult:
        observation, info = super().reset(seed, **kwargs)
        observation, own = self._marked(observation, info)
        self._pictures = [own]
        if self.apply_chat_template_on_reset:
            observation = self._template([{"role": "user", "content": observation}])
        self._observations, self._actions = [(observation, False)], []
        self._text = _line(observation)
        return self.observation(info), self._with_pictures(info)

    def step(self, action: str) -> StepResult:
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation, own = self._marked(observation, info)
        self._pictures.append(own)
        self._actions.append(info.get("parsed_action", action))
        self._observations.append((observation, bool(info.get("use_tool", False))))
        self._text += (_line(self._actions[-1]) if self.include_action else "") + _line(observation)
        return self.observation(info), reward, terminated, truncated, self._with_pictures(info)

    def _marked(self, observation: str, info: dict[str, Any]) -> tuple[str, list[Picture]]:
        """Return an observation with a mark for each of its pictures, and these, without those of prefix and suffix."""
        images, first = pictures(info), str(info.get("prefix", "")).count(MARK)
        if not any(MARK in text for text in (observation, str(info.get("prefix", "")), str(info.get("suffix", "")))):
            observation = f"{MARK}\n" * len(images) + observation
        return observation, list(images[first : first + observation.count(MARK)])

    def _with_pictures(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return the info with the pictures of all that is shown."""
        images, first = pictures(info), str(info.get("prefix", "")).count(MARK)
        earlier = [self._pictures[i] for i in (0, *self._shown_indices())]
        last = images[first + len(self._pictures[-1]) :]
        shown = [*images[:first], *(image for each in earlier for image in each), *last]
        return {**info, "images": shown} if shown else info

    def observation(self, info: dict[str, Any]) -> str:
        """Return the history with the prefix and suffix of ``info``.

        Raises:
            UsageError: the environment has several players.
        """
        if "players" in info:
            raise UsageError(f"{self} has several players: its history would show each what only others may see")
        text = self._template(self._messages()) if self.include_chat_template else self._joined()
        return f"{info.get('prefix', '')}{text}{info.get('suffix', '')}"

    def _shown_indices(self) -> range:
        """Indices of the observations to show after the first."""
        n = len(self._observations)
        return range(1 if self.max_history_length is None else max(1, n - self.max_history_length), n)

    def _joined(self) -> str:
        if self.max_history_length is None:
            return self._text
        parts = [_line(self._observations[0][0])]
        for i in self._shown_indices():
            if self.include_action:
                parts.append(_line(self._actions[i - 1]))
            parts.append(_line(self._observations[i][0]))
        return "".join(parts)

    def _messages(self) -> list[dict[str, str]]:
        messages = [{"role": "user", "content": self._observations[0][0]}]
        for i in self._shown_indices():
            observation, from_tool = self._observations[i]
            messages.append({"role": "assistant", "content": self._actions[i - 1]})
            messages.append({"role": "tool" if from_tool else "user", "content": observation})
        return messages

    def _template(self, messages: list[dict[str, str]]) -> str:
        assert self.tokenizer is not None
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def _get_state(self) -> dict[str, Any]:
        return {
            "observations": [list(o) for o in self._observations],
            "actions": list(self._actions),
            "pictures": [[image.as_json() for image in own] for own in self._pictures],
        }

    def _set_state(self, state: dict[str, Any]) -> None:
        self._observations = [(text, used) for text, used in state["observations"]]
        self._actions = list(state["actions"])
        self._pictures = [[picture(image) for image in own] for own in state["pictures"]]
        self._text = "".join(_line(text) for text, _ in self._observations[:1])
        for action, (text, _) in zip(self._actions, self._observations[1:], strict=True):
            self._text += (_line(action) if self.include_action else "") + _line(text)


def _line(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"
