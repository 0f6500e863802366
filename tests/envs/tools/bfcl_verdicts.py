"""Run by bfcl-eval's own Python: reads cases from stdin as JSON and writes the verdicts of its checker.

Its checker imports the clients of every vendor to look up how a model writes names; that table is replaced here.
"""

import json
import sys
import types

models = types.ModuleType("bfcl_eval.constants.model_config")
models.MODEL_CONFIG_MAPPING = {"any": types.SimpleNamespace(underscore_to_dot=False)}
sys.modules["bfcl_eval.constants.model_config"] = models

from bfcl_eval.constants.enums import Language  # noqa: E402
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # noqa: E402


def verdict(functions, calls, answer, category):
    """Whether the checker says that calls are right; where it fails, they are not."""
    try:
        return ast_checker(functions, calls, answer, Language.PYTHON, category, "any")["valid"]
    except Exception:
        return False


print(json.dumps([verdict(*case) for case in json.load(sys.stdin)]))
