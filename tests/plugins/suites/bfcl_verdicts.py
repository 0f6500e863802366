"""Run by bfcl-eval's own Python: reads cases from stdin as JSON and writes the verdicts of its checkers.

Its checkers import the clients of every vendor to look up how a model writes names; that table is replaced here.
"""

import contextlib
import json
import sys
import types

models = types.ModuleType("bfcl_eval.constants.model_config")
models.MODEL_CONFIG_MAPPING = {"any": types.SimpleNamespace(underscore_to_dot=False)}
sys.modules["bfcl_eval.constants.model_config"] = models

from bfcl_eval.constants.enums import Language  # noqa: E402
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # noqa: E402
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker  # noqa: E402


def single(functions, calls, answer, category):
    """Whether calls are right; where the checker fails, they are not."""
    try:
        return ast_checker(functions, calls, answer, Language.PYTHON, category, "any")["valid"]
    except Exception:
        return False


def multi(number, entry, calls, answer):
    """Whether the calls of a conversation are right. Instances are kept by the model's name, so each case has one."""
    with contextlib.redirect_stdout(sys.stderr):
        return multi_turn_checker(calls, answer, entry, "multi_turn_base", f"case{number}")["valid"]


cases = json.load(sys.stdin)
verdicts = {
    "single": [single(*case) for case in cases.get("single", ())],
    "multi": [multi(number, *case) for number, case in enumerate(cases.get("multi", ()))],
}
print(json.dumps(verdicts))
