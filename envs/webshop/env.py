"""WebShop as a text environment: search, choose and buy according to an instruction."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.errors import EpisodeOver, Unsolvable, UsageError
from rollenv.core.parsing import last_boxed, last_tagged
from rollenv.envs.webshop.goals import KINDS, SPLITS, Goals
from rollenv.envs.webshop.pages import (
    BACK,
    BUY,
    MODES,
    NEXT,
    PREVIOUS,
    SEPARATOR,
    SUB_PAGES,
    PagePart,
    View,
    clickables,
)
from rollenv.envs.webshop.pages import nodes as page_nodes
from rollenv.envs.webshop.pages import render as render_page
from rollenv.envs.webshop.product import ShopGoal
from rollenv.envs.webshop.reward import PUBLISHED, RewardRules, purchase_reward
from rollenv.envs.webshop.search import MAX_QUERY, rank_in
from rollenv.envs.webshop.shop import Shop, open_shop

HOW_TO_ACT = (
    "You shop on a web site for what the instruction asks for. Every turn, answer with one action: search[words] "
    "searches the shop, click[name] clicks a button, product or option of the page. Choose the options that are asked "
    "for, then click[buy now]; that ends the episode.\n"
)
_ACTION = re.compile(r"(search|click)\[(.+)\]", re.DOTALL)
#: Maximum number of draws for a reachable goal.
_MAX_DRAWS = 10_000


class WebShopEnv(Env):
    """Buy what an instruction asks for (WebShop, arXiv 2207.01206).

    An action is ``search[words]`` or ``click[name]``, alone, on the last line of a text, or within ``\\boxed{}``,
    ``<action>`` or ``<answer>`` tags. Any other action, or a click on something absent, changes nothing. The reward,
    from 0 to 1, comes with the purchase; ``success`` is a reward of 1. ``info`` has ``available_actions`` in the
    original's format, ``nouns`` (the source of the reward's nouns), and after a purchase ``reward_details``.

    Args:
        split: ``train``, ``eval``, ``test`` (the published ones, which share no goal), ``rest`` (all but ``test``) or
            ``all``.
        observation: format of pages: ``text``, ``text_rich`` or ``html``.
        num_products: use only the first products; None for all.
        goals: the published goals: ``synthetic`` or ``human``.
        invalid_action_penalty: reward of an action that is malformed or not available.
        error_tolerance: number of such actions before the episode ends; None for no limit.
        history: number of past turns before the observation.
        show_selected: mark the chosen options in ``text``; the original does not show them there.
        show_actions: list the available actions in ``info["suffix"]``.
        separator: text between the parts of a page in ``text``, and between past turns.
        keep_unreachable_goals: also draw goals that cannot score 1 (see :meth:`Goals.unreachable`).
        weighted: draw goals by the original's weights instead of uniformly.
        rules: scoring of purchases, as :class:`RewardRules` or its fields.
        price_seed: seed of the prices within a product's range, and of the price limits.
        data: the folder of WebShop's files; by default ``$ROLLENV_DATA/webshop``.

    ``reset(options={"index": i})`` plays the i-th goal of the split, reachable or not.
    """

    def __init__(
        self,
        split: str = "train",
        observation: str = "text",
        num_products: int | None = None,
        goals: str = "synthetic",
        max_steps: int = 15,
        *,
        invalid_action_penalty: float = 0.0,
        error_tolerance: int | None = None,
        history: int = 0,
        show_selected: bool = False,
        show_actions: bool = True,
        separator: str = SEPARATOR,
        keep_unreachable_goals: bool = False,
        weighted: bool = False,
        rules: RewardRules | Mapping[str, Any] = PUBLISHED,
        price_seed: int = 0,
        data: str | Path | None = None,
    ):
        for name, value, known in (
            ("split", split, SPLITS),
            ("observation", observation, MODES),
            ("goals", goals, KINDS),
        ):
            if value not in known:
                raise UsageError(f"{name} {value!r} is unknown; choose from {', '.join(known)}")
        if max_steps < 1 or history < 0 or (num_products is not None and num_products < 1):
            raise UsageError(
                f"max_steps and num_products must be at least 1 and history at least 0, "
                f"got {max_steps}, {num_products}, {history}"
            )
        self.split, self.observation, self.max_steps, self.history = split, observation, max_steps, history
        self.invalid_action_penalty, self.error_tolerance = invalid_action_penalty, error_tolerance
        self.show_selected, self.show_actions, self.separator = show_selected, show_actions, separator
        self.keep_unreachable_goals, self.weighted = keep_unreachable_goals, weighted
        self.rules = rules if isinstance(rules, RewardRules) else RewardRules(**rules)
        self.price_seed = price_seed
        self.shop = self._open(data, num_products)
        self.goals: Goals = self.shop.goals(goals, price_seed, self.rules)
        self.goal: ShopGoal
        self.view = View()
        self.turn = self.errors = 0
        self.reward = 0.0
        self._past: list[str] = []
        self._page: list[PagePart] = []
        self._clickable: dict[str, PagePart] = {}

    def _open(self, data: str | Path | None, num_products: int | None) -> Shop:
        return open_shop(data, num_products)

    # -- the episode -------------------------------------------------------------------------------------------------

    reset_options = frozenset({"index"})
    _changed_in_place = ("view",)

    def num_tasks(self) -> int:
        """Return the number of goals of the split, reachable or not."""
        return len(self.goals.split(self.split))

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        self.goal = self.goals[self._draw(options.get("index"))]
        self.view = View()
        self.turn = self.errors = 0
        self.reward = 0.0
        self._past = []
        self._show()
        return self._observe(), self._info(None)

    def _draw(self, index: int | None) -> int:
        """Return the number of the goal to play."""
        chosen = self.goals.split(self.split)
        if index is not None:
            if not 0 <= index < len(chosen):
                raise UsageError(f"{self}: there is no goal {index}; the split {self.split!r} has {len(chosen)}")
            return int(chosen[index])
        ends = np.cumsum(self.goals.weights(self.split)) if self.weighted else None
        for _ in range(_MAX_DRAWS if len(chosen) else 0):
            if ends is None:
                number = int(chosen[self.randint(len(chosen))])
            else:
                number = int(chosen[np.searchsorted(ends, self.np_random.random() * ends[-1], side="right")])
            if self.keep_unreachable_goals or self.goals.reachable(number):
                return number
        raise UsageError(
            f"{self}: none of the {len(chosen)} goals of split {self.split!r} can be reached; use another split, "
            "or pass keep_unreachable_goals=True"
        )

    def _step(self, action: str) -> StepResult:
        self.turn += 1
        before = self._text() if self.history else ""
        valid = self._act(action)
        reward = 0.0 if valid else self.invalid_action_penalty
        self.errors += not valid
        if self.history:
            self._past = [*self._past, before, action[:MAX_QUERY]][-2 * self.history :]
        if self.view.page == "done":
            product = self.shop.catalogue.product(self.view.product)
            price = product.price(self.price_seed)
            self.reward, details = purchase_reward(product, self.goal, price, self.view.options, self.rules)
            self._show()
            info = {**self._info(True), "success": self.reward == 1.0, "reward_details": details}
            return self._observe(), self.reward, True, False, info
        ended = self.error_tolerance is not None and self.errors >= self.error_tolerance and not valid
        truncated = not ended and self.turn >= self.max_steps
        info = self._info(valid)
        if ended or truncated:
            info["success"] = False
        return self._observe(), reward, ended, truncated, info

    def _act(self, action: str) -> bool:
        """Carry out an action; return False if it is invalid."""
        parsed = parse_action(action)
        if parsed is None:
            return False
        kind, argument = parsed
        if kind == "search":
            self.view.page, self.view.keywords, self.view.number = "results", " ".join(argument.split())[:MAX_QUERY], 1
            self.view.product, self.view.options = -1, {}
        elif argument == "search" or argument not in self._clickable:
            return False
        else:
            self._click(self._clickable[argument], argument)
        if self.view.page != "done":
            self._show()
        return True

    def _click(self, node: PagePart, name: str) -> None:
        """Click on an element. Buttons take precedence over options of the same name, as in the original."""
        view = self.view
        if name == BUY.lower():
            view.page = "done"
        elif name == BACK.lower():
            self.view = View()
        elif view.page == "results" and name in (NEXT.lower(), PREVIOUS.lower()):
            view.number += 1 if name == NEXT.lower() else -1
        elif name == PREVIOUS.lower():
            if view.page == "item":
                view.page, view.product, view.options = "results", -1, {}
            else:
                view.page = "item"
        elif name in SUB_PAGES:
            view.page = name
        elif node.kind == "product":
            number = self.shop.catalogue.find(node.text)
            assert number is not None
            view.page, view.product = "item", number
            if node.text not in view.visited:
                view.visited.append(node.text)
        else:
            view.options[node.option] = name

    # -- what is seen ------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        """Rebuild the page."""
        self._page = page_nodes(self.view, self.shop.content(self.view, self.goal.instruction, self.reward))
        self._clickable = clickables(self._page)

    def _text(self) -> str:
        return render_page(self._page, self.view, self.observation, self.show_selected, self.separator)

    def _observe(self) -> str:
        return self.separator.join([*self._past, self._text()]) if self._past else self._text()

    def _info(self, valid: bool | None) -> dict[str, Any]:
        bar = self.view.page == "index"
        info: dict[str, Any] = {
            "prefix": HOW_TO_ACT,
            "available_actions": {"has_search_bar": bar, "clickables": list(self._clickable)},
            "nouns": self.rules.nouns,
        }
        if self.show_actions:
            info["suffix"] = self._suffix()
        if valid is not None:
            info["valid"] = valid
        return info

    def _suffix(self) -> str:
        if self.view.page == "done":
            return ""
        clicks = [f"click[{name}]" for name in self._clickable if name != "search"]
        return f"Available actions: {', '.join(['search[words]', *clicks])}"

    def render(self) -> str:
        """Return the page, the customer's choices and the page's text."""
        if not self._page:
            return ""
        page = render_page(self._page, self.view, "text")
        return f"{self.state_key()}\n{page}"

    # -- abilities ---------------------------------------------------------------------------------------------------

    def state_key(self) -> str:
        """Return a key of the goal, the page, the choices and, if the observation shows them, the visited items."""
        view = self.view
        visited = sorted(view.visited) if self.observation == "text_rich" else []
        index = [self.goal.number, view.page, view.keywords, view.number, view.product, view.options, visited]
        return json.dumps(index, sort_keys=True)

    def alike_key(self) -> str:
        """The instruction without its price limit."""
        return self.goal.instruction.partition(", and price lower than")[0]

    def sample_random_action(self) -> str:
        """Return a click on an element of the page, or, rarely, a search for words of the instruction."""
        if not self._page:
            return "search[shoes]"
        names = [name for name in self._clickable if name != "search"]
        if names and self.action_rng.random() < 0.9:
            return f"click[{self.action_rng.choice(names)}]"
        words = self.goal.instruction.lower().replace("]", " ").replace("[", " ").split()
        size = min(len(words), self.action_rng.randint(1, 6))
        return f"search[{' '.join(self.action_rng.sample(words, size)) or 'shoes'}]"

    def oracle_action(self) -> str:
        if self._rollenv_over:
            raise EpisodeOver(f"{self}: the episode is over; there is no next action")
        view, goal = self.view, self.goal
        if view.product == goal.product:
            return self._finish() if view.page == "item" else f"click[{PREVIOUS.lower()}]"
        if view.page == "results":
            index = rank_in(self.shop.engine.search(view.keywords), goal.product)
            if index is not None:
                page = index // self.shop.window + 1
                if page == view.number:
                    return f"click[{goal.asin.lower()}]"
                if abs(page - view.number) <= page:
                    return f"click[{(NEXT if page > view.number else PREVIOUS).lower()}]"
        keywords = self.shop.best_search(goal.product)
        if keywords is None:
            raise Unsolvable(f"{self}: no search finds the product {goal.asin}")
        return f"search[{keywords}]"

    def _finish(self) -> str:
        """Return the click on the next option to choose, or the purchase."""
        for value in self.goals.plan(self.goal):
            node = self._clickable.get(value)
            if node is not None and node.kind == "option" and value not in self.view.options.values():
                return f"click[{value}]"
        return f"click[{BUY.lower()}]"

    def _get_state(self) -> dict[str, Any]:
        return {
            "goal": self.goal.number if self._page else None,
            "view": asdict(self.view),
            "turn": self.turn,
            "errors": self.errors,
            "reward": self.reward,
            "past": list(self._past),
        }

    def _set_state(self, state: dict[str, Any]) -> None:
        self.view = View(**copy.deepcopy(state["view"]))
        self.turn, self.errors, self.reward = state["turn"], state["errors"], state["reward"]
        self._past = list(state["past"])
        self._page, self._clickable = [], {}
        if state["goal"] is not None:
            self.goal = self.goals[state["goal"]]
            self._show()


def parse_action(text: str) -> tuple[str, str] | None:
    """Parse ``search`` or ``click`` and its argument in lower case; None if there is no action.

    The action is in ``\\boxed{}``, in ``<action>`` or ``<answer>`` tags, or on the last line.
    """
    found = None
    if "box" in text:
        found = last_boxed(text)
    if found is None and "</" in text:
        found = last_tagged(text, "action") or last_tagged(text, "answer")
    if found is None:
        found = text.rstrip().rpartition("\n")[2]
    match = _ACTION.fullmatch(found.strip())
    argument = match[2].strip().lower() if match else ""
    return (match[1], argument) if match and argument else None
