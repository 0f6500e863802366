"""GEM's module tree, so that code written for GEM runs on rollenv unchanged.

After :func:`install`, ``import gem`` and its submodules resolve to rollenv; nothing of GEM has to be installed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from rollenv.core import UsageError

_GAMES = "rollenv.envs.games"
_REGISTRATION = {
    "ENV_REGISTRY": "rollenv.registry:ENV_REGISTRY",
    "EnvSpec": "rollenv.registry:EnvSpec",
    "make": "rollenv.registry:make",
    "make_vec": "rollenv.vector:make_vec",
    "print_envs": "rollenv.registry:print_envs",
    "register": "rollenv.registry:register",
}
_MULTI_AGENT = {
    "AgentSelector": "rollenv.envs.multiagent:AgentSelector",
    "MultiAgentEnv": "rollenv.envs.multiagent:MultiAgentEnv",
}
_WRAPPERS = "rollenv.wrappers"
_VECTOR = {name: f"rollenv.vector:{name}" for name in ("VectorEnv", "SyncVectorEnv", "AsyncVectorEnv", "AutoresetMode")}

#: GEM's modules, and where each of their public names is.
MODULES: dict[str, dict[str, str]] = {
    "gem": {"Env": "rollenv.core:Env"}
    | {name: _REGISTRATION[name] for name in ("make", "make_vec", "print_envs", "register")},
    "gem.core": {"Env": "rollenv.core:Env", "EnvWrapper": "rollenv.core:Wrapper", "ActType": "builtins:str"}
    | {"ObsType": "builtins:str"},
    "gem.envs": {},
    "gem.envs.registration": _REGISTRATION,
    "gem.envs.game_env": {},
    "gem.envs.math_env": {"MathEnv": "rollenv.compat.gem.data:MathEnv"},
    "gem.envs.code_env": {"CodeEnv": "rollenv.compat.gem.data:CodeEnv"},
    "gem.envs.math_visual_env": {"MathVisualEnv": "rollenv.compat.gem.data:MathVisualEnv"},
    "gem.envs.qa_env": {name: f"rollenv.compat.gem.data:{name}" for name in ("QaEnv", "apply_prompt")},
    "gem.envs.reasoning_gym": {"ReasoningGymEnv": "rollenv.compat.gem.data:ReasoningGymEnv"},
    "gem.envs.multiagent": _MULTI_AGENT,
    "gem.envs.multiagent.multi_agent_env": _MULTI_AGENT,
    "gem.multiagent": _MULTI_AGENT,
    "gem.multiagent.multi_agent_env": _MULTI_AGENT,
    "gem.tools": {},
    "gem.tools.base_tool": {"BaseTool": "rollenv.tools.base:BaseTool"},
    "gem.tools.python_code_tool": {"PythonCodeTool": "rollenv.tools.python:PythonCodeTool"},
    "gem.tools.search_tool": {"SearchTool": "rollenv.tools.search:SearchTool"},
    "gem.tools.tool_env_wrapper": {"ToolEnvWrapper": f"{_WRAPPERS}.tool_env:ToolEnvWrapper"},
    "gem.utils": {},
    "gem.utils.constants": {
        name: f"rollenv.compat.gem.utils:{name}" for name in ("TERMINAL_STATE", "INVALID_ACTION", "LanguageGameReward")
    },
    "gem.utils.parsing": {
        name: f"rollenv.compat.gem.utils:{name}"
        for name in (
            "extract_code_from_model",
            "extract_last_boxed_answer",
            "extract_last_tagged_answer",
            "last_boxed_only_string",
            "remove_boxed",
        )
    },
    "gem.utils.seeding": {name: f"rollenv.compat.gem.utils:{name}" for name in ("np_random", "set_seed")},
    "gem.utils.qa_em": {name: f"rollenv.compat.gem.utils:{name}" for name in ("normalize_answer", "em_check")},
    "gem.utils.sandbox": {"run_python": "rollenv.compat.gem.utils:run_python"},
    "gem.utils.debug": {name: f"rollenv.compat.gem.utils:{name}" for name in ("ppprint", "run_and_print_episode")},
    "gem.vector": _VECTOR,
    "gem.vector.vector_env": {name: _VECTOR[name] for name in ("VectorEnv", "AutoresetMode")},
    "gem.vector.sync_vector_env": {"SyncVectorEnv": _VECTOR["SyncVectorEnv"]},
    "gem.vector.async_vector_env": {"AsyncVectorEnv": _VECTOR["AsyncVectorEnv"]},
    "gem.wrappers": {},
    "gem.wrappers.observation_wrapper": {"ObservationWrapper": f"{_WRAPPERS}.observation:ObservationWrapper"},
    "gem.wrappers.episode_tracking_wrapper": {"EpisodeTrackingWrapper": f"{_WRAPPERS}.tracking:EpisodeTrackingWrapper"},
    "gem.wrappers.wrapper_factory": {
        name: f"{_WRAPPERS}.factory:{name}" for name in ("WRAPPER_FACTORY", "TOKENIZER_REQUIRED", "get_wrapper_fns")
    },
}

#: GEM's game modules: the class in each, and where it is here.
GAMES = {
    "crosswords": ("CrosswordsEnv", f"{_GAMES}.crosswords:Crosswords"),
    "fifteen_puzzle": ("FifteenPuzzleEnv", f"{_GAMES}.fifteen_puzzle:FifteenPuzzle"),
    "game_2048": ("Game2048Env", f"{_GAMES}.game_2048:Game2048"),
    "guess_the_number": ("GuessTheNumberEnv", f"{_GAMES}.guess_the_number:GuessTheNumber"),
    "hangman": ("HangmanEnv", f"{_GAMES}.hangman:Hangman"),
    "mastermind": ("MastermindEnv", f"{_GAMES}.mastermind:Mastermind"),
    "minesweeper": ("MinesweeperEnv", f"{_GAMES}.minesweeper:Minesweeper"),
    "sokoban": ("SokobanEnv", "rollenv.envs.sokoban:Sokoban"),
    "sudoku": ("SudokuEnv", f"{_GAMES}.sudoku:Sudoku"),
    "tower_of_hanoi": ("TowerofHanoiEnv", f"{_GAMES}.tower_of_hanoi:TowerofHanoi"),
    "word_search": ("WordSearchEnv", f"{_GAMES}.word_search:WordSearch"),
    "wordle": ("WordleEnv", f"{_GAMES}.wordle:Wordle"),
}
for _module, (_name, _where) in GAMES.items():
    MODULES[f"gem.envs.game_env.{_module}"] = {_name: _where}
    MODULES["gem.envs.game_env"][_name] = _where


class _Module(ModuleType):
    """Resolves its names when they are first used."""

    def __getattr__(self, name: str) -> Any:
        where = MODULES[self.__name__].get(name)
        if where is None:
            known = ", ".join(sorted(MODULES[self.__name__])) or "only submodules"
            raise AttributeError(f"rollenv's {self.__name__} has no {name!r}; it has {known}")
        module, _, attribute = where.partition(":")
        value = getattr(importlib.import_module(module), attribute)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted(MODULES[self.__name__])


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds GEM's modules here, before an installed GEM."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in MODULES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = _Module(spec.name, "rollenv under GEM's name.")
        module.__dict__["__all__"] = sorted(MODULES[spec.name])
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def install() -> None:
    """Make ``import gem`` mean rollenv in this process; calling it again does nothing.

    Raises:
        UsageError: if GEM itself was imported before.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "gem" in sys.modules:
        raise UsageError("GEM is already imported; call rollenv.compat.gem.install() before anything imports gem")
    sys.meta_path.insert(0, _Finder())
