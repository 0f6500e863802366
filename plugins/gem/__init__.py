"""GEM's module tree, so that code written for GEM runs on rollenv unchanged.

After :func:`install`, ``import gem`` and its submodules resolve to rollenv; nothing of GEM has to be installed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import re
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from rollenv.core.errors import RollenvError, UsageError

_HERE = "rollenv.plugins.gem"
#: Stand-in for the folder of GEM's packages, which have none.
_ROOT = f"{__file__}:"


#: GEM's modules (0.1.0 and main), with the module here of each public name.
_TABLE = """
gem = core: Env; registration: make make_vec print_envs register
gem.core = core: Env EnvWrapper ActType ObsType
gem.envs =
gem.envs.registration = registration: ENV_REGISTRY EnvSpec make make_vec print_envs register VectorEnv SyncVectorEnv
    AsyncVectorEnv; core: Env EnvWrapper
gem.envs.math_env = data: MathEnv verify_fn logger; math_grader: boxed_reward_fn run_with_timeout_signal
gem.envs.math_visual_env = data: MathVisualEnv
gem.envs.code_env = data: CodeEnv logger
gem.envs.qa_env = data: QaEnv logger apply_prompt
gem.envs.reasoning_gym = data: ReasoningGymEnv
gem.envs.multiagent = multiagent: AgentSelector MultiAgentEnv
gem.envs.multiagent.multi_agent_env = multiagent: AgentSelector MultiAgentEnv
gem.multiagent = multiagent: AgentSelector MultiAgentEnv
gem.multiagent.multi_agent_env = multiagent: AgentSelector MultiAgentEnv
gem.tools =
gem.tools.base_tool = tools: BaseTool
gem.tools.python_code_tool = tools: PythonCodeTool; utils: run_python
gem.tools.search_tool = tools: SearchTool TIMEOUT
gem.tools.mcp_tool = tools: MCPTool
gem.tools.tool_env_wrapper = wrappers: ToolEnvWrapper
gem.utils =
gem.utils.constants = utils: TERMINAL_STATE INVALID_ACTION LanguageGameReward BASE_IMPORTS
gem.utils.math_grader = math_grader: TimeoutException answer_tag_reward_fn answer_tag_reward_fn_for_orz
    are_equal_under_sympy boxed_reward_fn extract_answer extract_boxed_answer grade grade_answer_mathd
    grade_answer_sympy is_latex_equal is_value_equal mathd_normalize_answer normalize_final_answer
    r1_distill_qwen_math_reward_fn run_with_timeout_signal; utils: last_boxed_only_string remove_boxed
gem.utils.parsing = utils: extract_code_from_model extract_last_boxed_answer extract_last_tagged_answer
    last_boxed_only_string remove_boxed
gem.utils.seeding = utils: np_random set_seed RNG RandomNumberGenerator
gem.utils.qa_em = utils: normalize_answer em_check
gem.utils.sandbox = utils: BASE_IMPORTS; utils: run_python subprocess_run check_forbidden_imports
    DEFAULT_TIMEOUT CLI_ARG_SIZE_LIMIT ERROR_MSG_PREFIX
gem.utils.debug = utils: ppprint run_and_print_episode run_and_print_episode_async
    run_and_print_episode_with_selective_step
gem.vector = registration: VectorEnv SyncVectorEnv AsyncVectorEnv AutoresetMode
gem.vector.vector_env = registration: VectorEnv AutoresetMode
gem.vector.sync_vector_env = registration: SyncVectorEnv AutoresetMode VectorEnv
gem.vector.async_vector_env = registration: AsyncVectorEnv AutoresetMode VectorEnv
gem.wrappers =
gem.wrappers.observation_wrapper = wrappers: ObservationWrapper WrapperObsType maybe_add_new_line
gem.wrappers.episode_tracking_wrapper = wrappers: EpisodeTrackingWrapper WrapperObsType
gem.wrappers.wrapper_factory = wrappers: WRAPPER_FACTORY TOKENIZER_REQUIRED get_wrapper_fns EpisodeTrackingWrapper
    ObservationWrapper ToolEnvWrapper; tools: PythonCodeTool SearchTool
gem.__about__ = utils: __version__
"""


def _names(module: str, *names: str) -> dict[str, str]:
    return {name: f"{_HERE}.{module}:{name}" for name in names}


def _modules() -> dict[str, dict[str, str]]:
    modules: dict[str, dict[str, str]] = {"gem.envs.game_env": {}}
    for line in re.sub(r"\n +", " ", _TABLE).strip().split("\n"):
        name, parts = line.split("=")
        pairs = [part.split(":") for part in parts.split(";") if part.strip()]
        modules[name.strip()] = {
            k: v for where, names in pairs for k, v in _names(where.strip(), *names.split()).items()
        }
    return modules


#: GEM's modules, with the location of each public name.
MODULES = _modules()
MODULES["gem.vector.vector_env"]["ArrayType"] = "numpy:ndarray"
_CONSTANTS, _PARSING = MODULES["gem.utils.constants"], MODULES["gem.utils.parsing"]
#: Names that GEM's modules import from each other, so that users import them from any of them.
_USED: dict[str, dict[str, str]] = {
    "gem.envs": MODULES["gem.core"] | _CONSTANTS | _PARSING,
    "gem.tools": MODULES["gem.core"] | MODULES["gem.tools.base_tool"],
    "gem.vector": MODULES["gem.core"],
    "gem.wrappers": MODULES["gem.core"],
    "gem.multiagent": MODULES["gem.core"],
}

#: GEM's game modules, and the class in each.
GAMES = {
    "crosswords": "CrosswordsEnv",
    "crosswords.crosswords": "CrosswordsEnv",
    "fifteen_puzzle": "FifteenPuzzleEnv",
    "game_2048": "Game2048Env",
    "guess_the_number": "GuessTheNumberEnv",
    "hangman": "HangmanEnv",
    "mastermind": "MastermindEnv",
    "minesweeper": "MinesweeperEnv",
    "sokoban": "SokobanEnv",
    "sokoban.sokoban": "SokobanEnv",
    "sudoku": "SudokuEnv",
    "tower_of_hanoi": "TowerofHanoiEnv",
    "wiki_game": "WikiGameEnv",
    "word_search": "WordSearchEnv",
    "wordle": "WordleEnv",
}
for _module, _name in GAMES.items():
    MODULES[f"gem.envs.game_env.{_module}"] = _names("games", _name)
    MODULES["gem.envs.game_env"] |= _names("games", _name)

#: GEM's modules without a counterpart, and their replacements.
ELSEWHERE = {
    "gem.envs.mcpmark": "rollenv has no MCPMark tasks; MCP servers are tools: gem.tools.mcp_tool",
    "gem.envs.terminal": "terminal tasks are the ids harbor:PATH, without Docker; see docs/guides/tools.md",
    "gem.tools.mcp_server": "GEM's sample of a time server; any MCP server works with gem.tools.mcp_tool",
    "gem.tools.search_engine": "search a corpus in memory with rollenv.core.tools.search.CorpusSearchTool",
    "gem.envs.game_env.sokoban.utils": "levels are made in rollenv.envs.game.sokoban.levels",
}


class _Module(ModuleType):
    """A module that resolves its names and submodules on first use."""

    def __getattr__(self, name: str) -> Any:
        where = MODULES[self.__name__].get(name)
        if where is None and f"{self.__name__}.{name}" in MODULES:
            return importlib.import_module(f"{self.__name__}.{name}")
        if where is None:
            where = _USED.get(".".join(self.__name__.split(".")[:2]), {}).get(name)
        if where is None:
            known = ", ".join(dir(self)) or "nothing"
            raise AttributeError(f"rollenv's {self.__name__} has no {name!r}; it has {known}")
        module, _, attribute = where.partition(":")
        value = getattr(importlib.import_module(module), attribute)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        inside = {name.removeprefix(f"{self.__name__}.") for name in MODULES if name.startswith(f"{self.__name__}.")}
        return sorted({*MODULES[self.__name__], *(name for name in inside if "." not in name)})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds GEM's modules here, before an installed GEM."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        for name, instead in ELSEWHERE.items():
            if fullname == name or fullname.startswith(f"{name}."):
                raise NotHere(f"rollenv has no {fullname}: {instead}", name=fullname)
        if fullname not in MODULES:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=__file__, is_package=True)
        spec.has_location = fullname == "gem"
        spec.submodule_search_locations = [f"{_ROOT}{fullname}"]
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = _Module(spec.name, "rollenv under GEM's name.")
        module.__dict__["__all__"] = sorted(MODULES[spec.name])
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Lister:
    """Lists the modules of GEM's packages for ``pkgutil``; :class:`_Finder` finds them."""

    def __init__(self, path: str):
        if not path.startswith(_ROOT):
            raise ImportError(f"{path!r} is not one of GEM's packages")
        self._package = path.removeprefix(_ROOT)

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        for name in sorted(MODULES):
            parent, _, last = name.rpartition(".")
            if parent == self._package:
                yield f"{prefix}{last}", any(other.startswith(f"{name}.") for other in MODULES)

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> None:
        """Return None: the finder finds all modules."""


def current(module: str, name: str) -> Any:
    """Return the current value of a name in one of GEM's modules, which the user may have replaced."""
    found = sys.modules.get(module)
    return getattr(found if isinstance(found, _Module) else _Module(module), name)


class NotHere(RollenvError, ModuleNotFoundError):
    """One of GEM's modules has no counterpart; the message names the replacement."""


def install() -> None:
    """Make ``import gem`` mean rollenv in this process; calling it again does nothing.

    Raises:
        UsageError: if GEM itself was imported before.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "gem" in sys.modules:
        raise UsageError("GEM is already imported; call rollenv.plugins.gem.install() before anything imports gem")
    sys.meta_path.insert(0, _Finder())
    sys.path_hooks.append(_Lister)
