"""The tool that runs Python."""

from __future__ import annotations

import copy
import re

from rollenv.core.errors import UsageError
from rollenv.core.parsing import Element, code_blocks, first_tagged
from rollenv.core.tools.base import NOT_CALLED, BaseTool, ToolResult
from rollenv.core.tools.sandboxed import chosen
from rollenv.sandbox import Runner, Sandbox, SandboxDied, shared_pool

#: Maximum characters of a program's output in an observation.
MAX_CHARACTERS = 20_000


class PythonCodeTool(BaseTool):
    """Runs the first ``<python>`` element or Python code fence of an action in an isolated sandbox.

    Args:
        timeout: seconds for a program; they hold.
        sandbox_type: GEM's name for ``sandbox``; its ``none`` and ``bwrap`` mean the default, since untrusted code is
            never run in the open.
        keep_error_last_line: show only the last line of an error.
        runner: runs the code instead; closing it stays with its owner.
        common_imports: run a program that fails because of a missing import (``math``, ``np``, ``Counter``) once
            more with it in place. Other errors of it are still shown.
        stateful: keep variables from call to call, in a sandbox that belongs to this tool and ends with it.
        sandbox, image: ``local`` or ``docker``, and the containers' image; see
            :func:`~rollenv.sandbox.backends.chosen`.
    """

    tool_type = "python"

    def __init__(
        self,
        timeout: float = 5,
        sandbox_type: str | None = None,
        keep_error_last_line: bool = False,
        runner: Runner | None = None,
        stateful: bool = False,
        num_workers: int = 1,
        common_imports: bool = False,
        *,
        sandbox: str | None = None,
        image: str | None = None,
    ):
        super().__init__(num_workers)
        self.common_imports = common_imports
        self._chosen = chosen(sandbox or sandbox_type, image)
        self.timeout, self.keep_error_last_line = timeout, keep_error_last_line
        self.stateful, self._runner = stateful, runner
        self._sandbox: Sandbox | None = None

    def instruction_string(self) -> str:
        return "To run Python code, write it between <python> and </python>; what it prints is shown to you."

    def execute_action(self, action: str) -> ToolResult:
        block = first_program(action)
        return NOT_CALLED if block is None else self.answer(block.content, action[: block.end])

    def answer(self, code: str, parsed: str) -> ToolResult:
        """Run a program found in an action. ``parsed``: the part of the action that contained it."""
        output, errors = self._in_sandbox(code) if self.stateful else self._fresh(code)
        if errors and self.keep_error_last_line:
            errors = errors.splitlines()[-1]
        text = shortened("\n".join(part for part in (output.rstrip(), errors) if part))
        return ToolResult(True, bool(errors), f"Code execution result: {text}\n", parsed)

    def _fresh(self, code: str) -> tuple[str, str]:
        """Return (output, errors); if the program succeeds, standard error is part of the output."""
        runner = self._runner or shared_pool(**self._chosen)
        result = runner.run(code, timeout=self.timeout)
        if self.common_imports and result.exit_code and lacks_an_import(result.stderr):
            result = runner.run(with_common_imports(code), timeout=self.timeout)
        stderr = result.stderr.strip()
        if result.timed_out:
            return result.stdout, f"{stderr}\nStopped after {self.timeout:g} seconds.".strip()
        if result.truncated or result.out_of_memory:
            return result.stdout, "Stopped: too much output." if result.truncated else "Stopped: too much memory."
        if result.exit_code:
            return result.stdout, stderr or f"It exited with {result.exit_code}."
        return f"{result.stdout}{stderr}", ""

    def _in_sandbox(self, code: str) -> tuple[str, str]:
        if self._sandbox is None or not self._sandbox.alive:
            self._sandbox = Sandbox.create(**self._chosen)
        try:
            done = self._sandbox.run_code(code, timeout=self.timeout)
        except SandboxDied:  # code of an earlier call may have caused this; the environment is fine
            return "", "The sandbox had ended; its variables are lost."
        output = "".join(done.logs.stdout) + (f"{done.text}\n" if done.text is not None else "")
        return output, "" if done.error is None else done.error.traceback.strip() or done.error.value

    def reset(self) -> None:
        """Start an episode without the variables of the previous one."""
        self.close()

    def spawn(self, same_state: bool = False) -> PythonCodeTool:
        if not self.stateful:
            return self
        if same_state and self._sandbox is not None:
            raise UsageError("the variables of a stateful Python tool cannot be copied: spawn a fresh environment")
        twin = copy.copy(self)
        twin._sandbox = None
        return twin

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.kill()
            self._sandbox = None


#: Modules of the standard library that programs often forget to import, and names in them.
_COMMON = {
    "bisect": "bisect_left bisect_right insort",
    "collections": "Counter OrderedDict defaultdict deque",
    "copy": "deepcopy",
    "datetime": "timedelta",
    "fractions": "Fraction",
    "functools": "cache cmp_to_key lru_cache partial reduce",
    "heapq": "heapify heappop heappush heapreplace merge nlargest nsmallest",
    "io": "StringIO",
    "itertools": "accumulate chain combinations count cycle groupby islice pairwise permutations product repeat "
    "zip_longest",
    "json": "",
    "math": "atan2 ceil comb factorial floor gcd inf isqrt log log10 log2 pi prod sqrt",
    "operator": "iand itemgetter or_ sub xor",
    "os": "",
    "os.path": "commonprefix",
    "random": "randrange shuffle",
    "re": "",
    "statistics": "mean median stdev",
    "string": "ascii_lowercase ascii_uppercase",
    "sys": "",
    "time": "",
    "typing": "Any Callable Deque Dict Generator Iterable Iterator List Optional Set Tuple Union",
}
#: Packages with their usual short names; those not installed are skipped.
_PACKAGES = {"numpy": "np", "pandas": "pd", "sympy": "sp"}


def _statements() -> dict[str, str]:
    """Return the import statement of each name."""
    given = {name: f"from {module} import {name}" for module, names in _COMMON.items() for name in names.split()}
    given |= {module: f"import {module}" for module in _COMMON if "." not in module}
    for package, short in _PACKAGES.items():
        for name in (package, short):
            given[name] = f"try:\n    import {package} as {name}\nexcept ImportError:\n    pass"
    return given


_GIVEN = _statements()
#: Modules with a function of the same name, which is what a call means.
_ALSO_FUNCTIONS = ("bisect", "copy", "time")
_UNDEFINED = re.compile(r"^NameError: name '(\w+)' is not defined", re.MULTILINE)


def lacks_an_import(errors: str) -> bool:
    """Return whether a program failed because a common import is missing."""
    return any(name in _GIVEN for name in _UNDEFINED.findall(errors))


def with_common_imports(code: str) -> str:
    """Add common imports for the names in a program; its lines keep their numbers."""
    words = [word for word in dict.fromkeys(re.findall(r"\w+", code)) if word in _GIVEN]
    called = {word for word in _ALSO_FUNCTIONS if re.search(rf"(?<![\w.]){word}\(", code)}
    imports = "\n".join(f"from {word} import {word}" if word in called else _GIVEN[word] for word in words)
    return f"exec({imports!r}); exec(compile({code!r}, '<program>', 'exec', dont_inherit=True))"


def first_program(action: str) -> Element | None:
    """Return the first ``<python>`` element or Python fence."""
    fenced = (block for language, block in code_blocks(action) if language in ("python", "python3", "py"))
    found = [block for block in (first_tagged(action, "python"), next(fenced, None)) if block is not None]
    return min(found, key=lambda block: block.end, default=None)


def shortened(text: str) -> str:
    """Shorten a text for an agent in the middle if it is too long."""
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}\n[{len(text) - MAX_CHARACTERS} characters left out]\n{text[-half:]}"
