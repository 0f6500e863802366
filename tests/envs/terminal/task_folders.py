"""Task folders for the tests, written on the spot."""

from pathlib import Path

#: Ways in which tests are run; all of them are found in published tasks.
SCRIPTS = {
    "shell": """#!/bin/bash
if [ "$(cat /app/answer.txt 2> /dev/null)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
""",
    "uv": """#!/bin/bash
apt-get update && apt-get install -y curl
curl -LsSf https://astral.sh/uv/0.7.13/install.sh | sh
source $HOME/.local/bin/env
uv init
uv add pytest
uv run pytest /tests/test_outputs.py -rA
if [ $? -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
""",
    "uv venv": """#!/bin/bash
curl -LsSf https://astral.sh/uv/0.7.13/install.sh | sh
source $HOME/.local/bin/env
uv venv .tests
source .tests/bin/activate
uv pip install pytest
uv run pytest /tests/test_outputs.py -rA
if [ $? -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
""",
    "pip": """#!/bin/bash
pip install pytest
python3 -m pytest /tests/test_outputs.py -rA
if [ $? -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
""",
}
TEST = """import subprocess
from pathlib import Path


def test_answer():
    assert Path("/app/answer.txt").read_text().strip() == "42"


def test_the_program():
    assert subprocess.run(["python3", "/app/solution.py"], capture_output=True, text=True).stdout.strip() == "42"
"""
SOLUTION = "#!/bin/bash\necho 42 > /app/answer.txt\necho 'print(6 * 7)' > /app/solution.py\n"


def write_task(folder: Path, style: str = "shell", *, toml: str = "", **files: str) -> Path:
    """A task in Harbor's format: write 42 to a file, and a program that prints it.

    Args:
        folder: where it is written.
        style: how its tests are run, see :data:`SCRIPTS`.
        toml: what its task.toml has besides.
        files: more of them, or others: path (with ``__`` for ``/``) to text.
    """
    all_files = {
        "task.toml": f'schema_version = "1.4"\n{toml}\n',
        "instruction.md": "Write 42 to /app/answer.txt, and a program that prints it to /app/solution.py.",
        "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\nCOPY solution.py ./\n",
        "environment/solution.py": "print('?')\n",
        "tests/test.sh": SCRIPTS[style],
        "tests/test_outputs.py": TEST,
        "solution/solve.sh": SOLUTION,
    } | {name.replace("__", "/"): text for name, text in files.items()}
    for name, text in all_files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
