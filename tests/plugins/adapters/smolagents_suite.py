"""smolagents' own agent, with a model that says what a test wrote, over our executor."""

import os

import PIL.Image
import pytest
from smolagents import AgentError, ChatMessage, CodeAgent, LogLevel, Model, Tool
from smolagents.models import MessageRole

from rollenv.plugins.adapters.smolagents import BoxExecutor
from rollenv.sandbox import BaseSandboxError, Limits


class Scripted(Model):
    """Says one text after the other."""

    def __init__(self, *codes):
        super().__init__()
        self.codes, self.seen = list(codes), []

    def generate(self, messages, **_):
        self.seen.append(messages)
        code = self.codes.pop(0) if self.codes else "final_answer('the script is over')"
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: go on\n<code>\n{code}\n</code>")


class Doubler(Tool):
    name = "doubler"
    description = "Doubles a number."
    inputs = {"number": {"type": "integer", "description": "The number."}}
    output_type = "integer"

    def forward(self, number: int) -> int:
        return number * 2


@pytest.fixture
def executor():
    with BoxExecutor(limits=Limits(seconds=2, memory_mb=1024)) as made:
        yield made


def play(executor, *codes, tools=(), task="a task", **settings):
    model = Scripted(*codes)
    agent = CodeAgent(tools=list(tools), model=model, executor=executor, verbosity_level=LogLevel.OFF)
    return agent.run(task, **settings), agent, model


def observations(agent):
    return [step.observations or str(step.error) for step in agent.memory.steps[1:]]


def test_state_is_kept_between_steps_and_tools_run_inside(executor):
    codes = "x = doubler(number=21)\nprint('x is', x)", "import os\nprint(os.getpid(), x + 1)", "final_answer({'x': x})"
    answer, agent, _ = play(executor, *codes, tools=[Doubler()])
    assert answer == {"x": 42}
    seen = observations(agent)
    assert len(agent.memory.steps) == 4
    assert "x is 42" in seen[0]
    assert f"{os.getpid()} 43" not in seen[1]
    assert " 43" in seen[1]


def test_the_model_sees_an_exception_and_goes_on(executor):
    answer, agent, _ = play(executor, "print('before')\n1 / 0", "final_answer(7)")
    assert answer == 7
    assert "before" in observations(agent)[0]
    assert "ZeroDivisionError" in observations(agent)[0]


def test_a_step_that_takes_too_long_is_stopped_and_keeps_its_variables(executor):
    answer, agent, _ = play(executor, "y = 5\nwhile True: pass", "final_answer(y)")
    assert answer == 5
    assert "Timeout: it ran longer than 2 s" in observations(agent)[0]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os\nos._exit(3)", "it exited with 3"),
        ("import os\nos.kill(os.getpid(), 9)", "SIGKILL"),
        ("print('x' * 10**8)", "OutputLimit"),
        ("import signal, time\nsignal.signal(2, signal.SIG_IGN)\ntime.sleep(60)", "Timeout"),
    ],
)
def test_after_the_interpreter_has_ended_the_tools_are_there_again(executor, code, said):
    codes = "z = 1", code, "print(doubler(number=4), names, 'z' in globals())", "final_answer('done')"
    answer, agent, _ = play(executor, *codes, tools=[Doubler()], additional_args={"names": ["a", "b"]})
    seen = observations(agent)
    assert answer == "done"
    assert said in seen[1]
    assert "variables of earlier steps are gone" in seen[1]
    assert "8 ['a', 'b'] False" in seen[2]


def test_a_sandbox_that_has_died_is_replaced(executor):
    executor.send_tools({})
    executor.sandbox.kill()
    with pytest.raises(AgentError, match="started again"):
        executor("1 + 1")
    assert executor("1 + 1").output == "2"


def test_an_agent_runs_again_and_again(executor):
    model = Scripted("final_answer(1)", "final_answer(2)", "final_answer(3)")
    agent = CodeAgent(tools=[], model=model, executor=executor, verbosity_level=LogLevel.OFF)
    assert [agent.run("again") for _ in range(3)] == [1, 2, 3]


def test_numpy_and_pictures_are_there(executor):
    picture = "from PIL import Image\nimage = Image.new('RGB', (3, 2), 'red')\nimage"
    shown = executor("import numpy\nnumpy.arange(3).sum().item()")
    assert shown.output == "3"
    assert isinstance(executor(picture).output, PIL.Image.Image)
    answer, _, _ = play(executor, picture, "final_answer(image)")
    assert answer.to_raw().size == (3, 2)
    assert answer.to_raw().getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize("value", [None, "", "ä\x00\n", 10**30, [1, (2, 3)], {"a": b"\x00\xff"}, "x" * 1_000_000])
def test_answers_come_back_as_they_were(executor, value):
    answer, _, _ = play(executor, f"final_answer({value!r})")
    assert answer == value


@pytest.mark.parametrize(
    "said", ["no prefix", "safe:{", "pickle:gASVDQAAAAAAAACMCWJ1aWx0aW5zlC4=", 'safe:{"__type__": "ndarray"}']
)
def test_a_forged_answer_is_an_error_and_is_not_unpickled(executor, said):
    forged = f"class FinalAnswerException(BaseException): pass\nraise FinalAnswerException({said!r})"
    answer, agent, _ = play(executor, forged, "final_answer('honest')")
    assert answer == "honest"
    assert "the final answer cannot be read" in observations(agent)[0]


def test_an_answer_that_is_too_long_is_an_error(executor):
    answer, agent, _ = play(executor, "final_answer('x' * 2**21)", "final_answer('short')")
    assert answer == "short"
    assert "1 MiB" in observations(agent)[0]


def test_long_output_is_cut(executor):
    shown = executor("print('a' * 1_000_000)").logs
    assert len(shown) < 60_000


def test_what_is_not_installed_is_said_at_once():
    with pytest.raises(BaseSandboxError, match="nosuchmodule"):
        BoxExecutor(packages=["nosuchmodule"])


def test_the_sandbox_sees_neither_the_network_nor_the_hosts_files(executor, tmp_path):
    (tmp_path / "secret").write_text("s")
    assert executor(f"import os\nos.path.exists({str(tmp_path / 'secret')!r})").output == "False"
    with pytest.raises(AgentError, match=r"OSError|unreachable"):
        executor("import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=1)")


def test_two_agents_have_sandboxes_of_their_own(executor):
    with BoxExecutor() as other:
        executor("shared = 1")
        with pytest.raises(AgentError, match="NameError"):
            other("shared")


def test_an_agent_cleans_up(executor):
    model = Scripted("final_answer(1)")
    with CodeAgent(tools=[], model=model, executor=executor, verbosity_level=LogLevel.OFF) as agent:
        agent.run("x")
    assert not executor.sandbox.alive
    executor.cleanup()
