"""Cells as people know them from notebooks: rich results, await, commands, magics, contexts, other languages."""

# ruff: noqa: E501

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from waiting import eventually, running

from rollenv.sandbox import Context, Execution, InvalidArgument, Limits, NotFound, Pool, Sandbox
from rollenv.sandbox.errors import FileThere

#: Of the sandbox that the tests of this file share.
LIMITS = Limits(seconds=20, memory_mb=1024)


def needs(box: Sandbox, program: str) -> None:
    if box.commands.run(f"command -v {program}").exit_code:
        pytest.skip(f"the {box.backend} sandbox has no {program}")


def said(done: Execution) -> str:
    return "".join(done.logs.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("word", ["exit", "quit"])
def test_programs_may_end_with_the_words_of_the_prompt(box, word):
    assert box.run_code(f"print(1); {word}()").error is None
    assert box.run_code(f"{word}(3)").error.name == "SystemExit"


# -- results ---------------------------------------------------------------------------------------------------------


def test_a_mime_bundle_keeps_every_type(box):
    code = """
class Shown:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": "plain", "image/png": b"png", "application/vnd.x+json": {"a": 1}, "text/x-own": "own",
                "application/pdf": b"pdf"}, {"image/png": {"width": 5}}
    def _repr_javascript_(self): return "alert()"
    def __repr__(self): return "repr"
Shown()
"""
    (shown,) = box.run_code(code).results
    assert (shown.text, shown.png, shown.pdf, shown.javascript) == ("plain", "cG5n", "cGRm", "alert()")
    assert shown.extra == {"application/vnd.x+json": '{"a": 1}', "text/x-own": "own"}
    assert set(shown.formats()) == {"text", "png", "pdf", "javascript", "application/vnd.x+json", "text/x-own"}
    assert shown._repr_mimebundle_()["image/png"] == "cG5n"


def test_names_that_are_none_are_left_out(box):
    done = box.run_code("display({'a b': 'x', 5: 'y', 'z' * 500: 'z', 'text/plain': 'kept'}, raw=True)")
    assert done.error is None
    assert (done.results[0].text, done.results[0].extra) == ("kept", {"5": "y"})


def test_a_thread_that_shows_things_after_its_cell_spoils_no_later_one(box):
    code = "import threading, time\ndef show():\n    for i in range(400): display(i); time.sleep(0.001)\nthreading.Thread(target=show).start()\n'first'"
    assert box.run_code(code).error is None
    time.sleep(0.2)
    assert box.run_code("'next'").error is None
    time.sleep(0.5)
    assert [box.run_code(f"{n} + 1").text for n in range(3)] == ["1", "2", "3"]


def test_raw_display_and_names_that_are_no_types(box):
    done = box.run_code("display({'text/html': '<i>', 'is_main_result': 'x', 'extra': 'y'}, raw=True)")
    assert done.error is not None or done.results[0].html == "<i>"
    assert box.run_code("1 + 1").text == "2"


def test_display_is_where_notebooks_import_it_from(box):
    needs_none = "import importlib.util; importlib.util.find_spec('IPython').origin"
    if box.run_code(needs_none).text is not None:
        pytest.skip("IPython is installed")
    code = "from IPython.display import display, HTML\nimport IPython\ndisplay(HTML('<b>x</b>'))\nIPython.display.JSON({'a': 1})"
    first, second = box.run_code(code).results
    assert (first.html, first.is_main_result) == ("<b>x</b>", False)
    assert second.json == {"a": 1}
    assert box.run_code("import IPython.core").error.name == "ModuleNotFoundError"


def test_callbacks_get_results_and_errors_as_they_come(box):
    seen: list[str] = []
    code = "import os, time\nprint('one')\ndisplay(1)\nwhile not os.path.exists('seen'): time.sleep(0.01)\n"
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(
            box.run_code,
            f"{code}print('two')\ndisplay(2)\n1 / 0",
            on_stdout=lambda text: seen.append(text.strip()),
            on_result=lambda result: seen.append(result.text),
            on_error=lambda error: seen.append(error.name),
        )
        assert eventually(lambda: seen == ["one", "1"])
        box.files.write("seen", "")
    assert seen == ["one", "1", "two", "2", "ZeroDivisionError"]
    assert [r.text for r in call.result().results] == ["1", "2"]


def test_too_many_results_are_dropped_and_said_to_be(box):
    done = box.run_code("for i in range(20000): display(i)")
    assert done.error is None
    assert "dropped" in done.results[-1].text
    assert box.run_code("1 + 1").text == "2"


def test_results_of_threads_and_forks_do_not_mix(box):
    code = """
import os, threading
threads = [threading.Thread(target=lambda: [display("x" * 5000) for _ in range(30)]) for _ in range(4)]
[t.start() for t in threads]
if os.fork() == 0:
    display("fork"); os._exit(0)
[t.join() for t in threads]
"""
    done = box.run_code(code)
    assert done.error is None
    assert {r.text for r in done.results[:120]} == {repr("x" * 5000)}
    assert len(done.results) in (120, 121)


@pytest.fixture(scope="module")
def drawn() -> Iterator[Sandbox]:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    with Sandbox.create(limits=Limits(seconds=60)) as made:
        yield made


CHARTS = {
    "line": (
        "plt.plot([1, 2, 3], [4, 5, float('nan')], label='a')",
        {"label": "a", "points": [[1, 4], [2, 5], [3, None]]},
    ),
    "scatter": ("plt.scatter([1, 2], [3, 4])", {"label": "scatter 0", "points": [[1, 3], [2, 4]]}),
    "bar": ("plt.bar(['x', 'y'], [5, 6], label='g')", {"label": "x", "group": "g", "value": 5}),
    "pie": ("plt.pie([1, 3], labels=['p', 'q'])", {"label": "p", "angle": 90, "radius": 1}),
    "box_and_whisker": (
        "plt.boxplot([[1, 2, 3, 4, 5, 99]])",
        {
            "label": "1",
            "min": 1,
            "first_quartile": 2.25,
            "median": 3.5,
            "third_quartile": 4.75,
            "max": 5,
            "outliers": [99],
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHARTS)
def test_charts_say_what_was_drawn(kind, drawn):
    draw, first = CHARTS[kind]
    done = drawn.run_code(
        f"import matplotlib.pyplot as plt\n{draw}\nplt.title('T'); plt.xlabel('Time (s)'); plt.show()"
    )
    assert done.error is None, done.error
    (shown,) = done.results
    assert shown.png.startswith("iVBOR")
    chart = shown.chart
    assert (chart["type"], chart["title"], chart["x_label"], chart["x_unit"]) == (kind, "T", "Time (s)", "s")
    found = chart["elements"][0]
    assert found.keys() == first.keys()
    for name, value in first.items():
        assert found[name] == (pytest.approx(value, rel=1e-5) if isinstance(value, (int, float)) else value)
    if kind in ("line", "scatter"):
        assert (chart["x_scale"], len(chart["x_ticks"])) == ("linear", len(chart["x_tick_labels"]))


@pytest.mark.slow
@pytest.mark.parametrize("values", ["days", "np.array(days, dtype='datetime64[ns]')"])
@pytest.mark.parametrize("draw", ["plot", "scatter"])
def test_dates_are_dates(draw, values, drawn):
    done = drawn.run_code(
        "import matplotlib.pyplot as plt, datetime, numpy as np\n"
        "days = [datetime.date(2024, 1, day) for day in (1, 2, 3)]\n"
        f"plt.{draw}({values}, [1, 2, 3]); plt.show()"
    )
    assert done.error is None, done.error
    chart = done.results[0].chart
    assert chart["x_scale"] == "datetime"
    assert chart["x_ticks"][0].startswith("2024-01-01")
    assert [x[:10] for x, _ in chart["elements"][0]["points"]] == ["2024-01-01", "2024-01-02", "2024-01-03"]


def test_show_shows_each_figure_at_once_and_several_axes_are_a_superchart(drawn):
    code = "import matplotlib.pyplot as plt\n%matplotlib inline\nplt.plot([1]); plt.show()\nprint('between')\nfig, axes = plt.subplots(2)\nfig"
    done = drawn.run_code(code)
    assert done.error is None, done.error
    assert done.results[0].chart["type"] == "line"
    assert done.results[1].chart["type"] == "superchart"
    assert len(done.results[1].chart["elements"]) == 2
    said = "".join(done.logs.stderr).splitlines()
    assert [line for line in said if not line.startswith("Fontconfig")] == [], "the first drawing looks for fonts"


@pytest.mark.slow
def test_tables_have_their_data():
    pytest.importorskip("pandas", reason="pandas is not installed")
    with Sandbox.create(limits=Limits(seconds=60)) as box:
        (shown,) = box.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', None]})").results
    assert shown.data == {"a": [1, 2], "b": ["x", None]}
    assert "<table" in shown.html


# -- the language ----------------------------------------------------------------------------------------------------


def test_cells_may_await_and_share_a_loop(box):
    code = "import asyncio\nasync def f(x):\n    await asyncio.sleep(0.01)\n    return x\ntask = asyncio.ensure_future(f(5))\nawait f(3)"
    assert box.run_code(code).text == "3"
    assert box.run_code("await task").text == "5"
    assert box.run_code("[x async for x in (await f(i) for i in range(3))]").text == "[0, 1, 2]"
    assert box.run_code("asyncio.run(f(7))").text == "7", "a cell that does not await has no loop running"
    assert box.run_code("await asyncio.sleep(30)", timeout=0.3).error.name == "Timeout"
    assert box.run_code("await f(4)").text == "4", "the interrupted cell left no task behind"


def test_cells_are_not_compiled_under_our_future_imports(box):
    assert box.run_code("def f(x: nothing_of_that_name): pass").error.name == "NameError"
    assert box.run_code("from __future__ import annotations").error is None
    assert box.run_code("def f(x: nothing_of_that_name): pass\nf.__annotations__['x']").text == "'nothing_of_that_name'"
    box.restart_context()


def test_commands(box):
    done = box.run_code("word = 'it'\n!echo \"{word}'s\" $word $HOME; echo err >&2; exit 3\n_exit_code")
    assert (said(done), "".join(done.logs.stderr), done.text) == ("it's it /home/user\n", "err\n", "3")
    assert box.run_code("lines = !printf 'a\\nb'\nlines").text == "['a', 'b']"
    assert said(box.run_code("!echo '{print $2} {1..3} {}' '$nothing'")) == "{print $2} {1..3} {} $nothing\n", (
        "other braces stay"
    )
    assert (
        said(box.run_code("if True:\n    for i in range(2):\n        !echo {i + 1} \\\n           x\nprint('end')"))
        == "1 x\n2 x\nend\n"
    )
    assert box.run_code("!sleep 300 | cat", timeout=0.3).error.name == "Timeout"
    assert box.run_code("1 + 1").text == "2"


@pytest.mark.parametrize(
    "code",
    [
        "x = '''\n!no command\n%no magic\n'''\n!true\nlen(x)",
        "x = (7\n% 4)\n!true\nx",
        "x = [5 # !no\n, '%no'\n]\n!true\nlen(x)",
        'x = f"""{1\n}%no\n!no"""\n!true\nlen(x)',
        'x = 1 + \\\n 2\n!echo "unbalanced \' quotes"\nx',
    ],
)
def test_only_lines_that_begin_a_statement_are_commands(code, box):
    done = box.run_code(code)
    assert done.error is None, done.error
    assert done.text == str({"len(x)": done.text}.get(code.splitlines()[-1], 3))


def test_a_cell_of_python_is_never_changed(box):
    assert box.run_code("x = '''\n!a\n%%b\n'''\nx").text == "'\\n!a\\n%%b\\n'"
    assert box.run_code("a = 7; b = 4\na \\\n%b").text == "3"
    assert "SyntaxError" in box.run_code("x = = 5\n!echo").error.name


def test_an_indented_cell_runs(box):
    assert said(box.run_code("\n    n = 1\n    for i in (2, 3):\n        n += i\n    print(n)\n")) == "6\n"
    assert said(box.run_code("\t!echo a\n\tprint(1)")) == "a\n1\n"
    assert box.run_code("x = 1\n    y = 2").error.name == "IndentationError"
    assert box.run_code("    x = 1\n  y = 2").error.name == "IndentationError"


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("7;", None), ("(7) ;  # seven", None), ("6;7;\n# after\n\n", None), ("%time 7;", None), ("if True:\n  7;", None),
        ("7", "7"), ("7 #;", "7"), ("';'", "';'"), ("'é;';7", "7"), ("'é'  # ;", "'é'"),
    ],
)  # fmt: skip
def test_a_semicolon_hides_the_value(code, shown, box):
    done = box.run_code(code)
    assert done.error is None
    assert done.text == shown


def test_functions_of_a_cell_have_their_source(box):
    box.run_code("import inspect\nprint(1)\ndef twice(x):\n    # doubled\n    return 2 * x")
    box.run_code("def other(): return 3")
    assert box.run_code("print(inspect.getsource(twice))").logs.stdout == [
        "def twice(x):\n    # doubled\n    return 2 * x\n\n"
    ]
    assert said(box.run_code("print(inspect.getsource(other))")) == "def other(): return 3\n\n"


def test_tracebacks_show_the_lines_of_each_cell(box):
    box.run_code("text = 'a\\x0cb'  # \x0c \u2028 are no ends of lines\ndef ratio(a, b):\n    return a / b")
    trace = box.run_code("!true\nx = 1\nratio(x, 0)").error.traceback.splitlines()
    places = [line.strip() for line in trace if line.lstrip().startswith("File")]
    assert [place.partition(", ")[2] for place in places] == ["line 3, in <module>", "line 3, in ratio"]
    assert places[0].partition(",")[0] != places[1].partition(",")[0]
    assert {"    ratio(x, 0)", "    return a / b"} <= set(trace)
    assert "    y = 1 / 0" in box.run_code("%%time\nx = 1\ny = 1 / 0").error.traceback.splitlines()
    box.files.write("fails.py", "x = 1\ny = 1 / 0\n")
    assert 'File "fails.py", line 2, in <module>' in box.run_code("%run fails.py").error.traceback
    wrong = box.run_code("x = 1\ny = (2")
    assert "line 2\n    y = (2\n" in wrong.error.traceback


def test_magics(box):
    box.run_code("%reset\n%cd /tmp")
    assert box.run_code("%pwd").text == "'/tmp'"
    assert box.run_code("where = %pwd\nwhere").text == "'/tmp'"
    box.run_code("%cd")
    box.run_code("%env FRUIT=apple")
    assert said(box.run_code("%env FRUIT\n!echo $FRUIT")) == "apple\n"
    assert "where" in said(box.run_code("%who"))
    assert box.run_code("%time 6 * 7").text == "42"
    done = box.run_code("%%time\nx = 6\nx * 7")
    assert done.text == "42"
    assert "Wall time" in said(done)
    assert "5 loops" in said(box.run_code("%timeit -n 5 -r 2 x + 1"))
    assert "per loop" in said(box.run_code("%%timeit -n5 -r2 y = 1\ny + 1"))
    assert said(box.run_code("%%sh\necho $((1 + 1))\nread nothing || echo end")) == "2\nend\n"
    assert box.run_code("%%sh\nexit 5").error.name == "CalledProcessError"
    box.run_code("%%writefile made.txt\none\n'''two")
    assert box.files.read("made.txt") == "one\n'''two"
    assert box.run_code("%%html\n<b>x</b>").results[0].html == "<b>x</b>"
    assert box.run_code("%%capture out\nprint('hidden')").logs.stdout == []
    assert box.run_code("out.stdout").text == "'hidden\\n'"
    assert box.run_code("%matplotlib inline\n%load_ext autoreload\n%config x").error is None
    box.files.write("script.py", "from_script = 5")
    assert box.run_code("%run script.py\nfrom_script").text == "5"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("%pip install x", "no network"),
        ("!!", ""),
        ("%nothing", "there is no magic %nothing"),
        ("%%nothing\nx", "there is no magic %%nothing"),
        ("%%writefile\nx", "needs a name"),
    ],
)
def test_magics_that_are_not_there_say_so(code, words, box):
    done = box.run_code(code)
    if words:
        assert done.error.name == "UsageError"
        assert words in done.error.value
        assert "magics.py" not in done.error.traceback, "nothing of the machine's paths"
    assert box.run_code("1 + 1").text == "2"


def test_programs_are_plain_python():
    with Pool(1) as pool:
        assert pool.run("!ls").exit_code != 0
        assert pool.run("import asyncio\nawait asyncio.sleep(0)").exit_code != 0
        assert pool.run("print('get_ipython' in globals())").stdout == "False\n"


# -- contexts --------------------------------------------------------------------------------------------------------


def test_executions_are_counted_in_each_context(box):
    name = box.create_context()
    assert [box.run_code("1", context=name).execution_count for _ in range(3)] == [1, 2, 3]
    box.restart_context(name)
    assert box.run_code("1", context=name).execution_count == 1
    box.remove_context(name)
    if not box.commands.run("command -v perl").exit_code:
        assert box.run_code("print 1", language="perl").execution_count is None


def test_contexts_are_listed_restarted_and_removed(box):
    box.run_code("x = 1")
    name = box.create_context("mine", cwd="/tmp")
    assert box.run_code("x", context=name).error.name == "NameError"
    with pytest.raises(FileThere):
        box.create_context("mine")
    assert Context("mine", "python", "/tmp") in box.list_contexts()
    box.run_code("y = 1; import os; os.chdir('/')", context=name)
    box.restart_context(name)
    assert box.run_code("y", context=name).error.name == "NameError"
    assert box.run_code("import os; os.getcwd()", context=name).text == "'/tmp'"
    assert box.run_code("x").text == "1", "others are left alone"
    box.remove_context(name)
    assert name not in [context.name for context in box.list_contexts()]
    for act in (box.restart_context, box.remove_context, lambda name: box.run_code("x", context=name)):
        with pytest.raises(NotFound):
            act(name)
    with pytest.raises(InvalidArgument, match="'cobol'"):
        box.create_context(language="cobol")


def test_a_restart_ends_a_cell_that_runs(box):
    with running(box, "import time; time.sleep(60)") as ended:
        box.restart_context()
    assert ended[0].error.name == "Killed"
    assert box.run_code("1 + 1").text == "2"


# -- other languages -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_bash_keeps_its_state(box):
    needs(box, "bash")

    def run(code: str, **more: Any) -> Execution:
        return box.run_code(code, language="bash", **more)

    assert run("x=5; cd /tmp; twice() { echo $(($1 * 2)); }").error is None
    done = run("echo $x $PWD; twice 4; read line; cat <<END\n$x\nEND")
    assert said(done).split() == ["5", "/tmp", "8", "5"]
    failed = run("echo out; false")
    assert (said(failed), failed.error.name, failed.exit_code) == ("out\n", "Exit", None)
    assert run("if").error is not None
    assert said(run("echo $x $WORD", env={"WORD": "it's"})) == "5 it's\n"
    assert said(run("echo $x ${WORD:-none}")) == "5 none\n", "variables of a call end with it"
    assert said(run("export WORD=own; true")) == ""
    assert said(run("echo $WORD; WORD=new", env={"WORD": "call"})) == "call\n"
    assert said(run("bash -c 'echo $WORD'")) == "own\n"
    assert run("false", env={"WORD": "call"}).error.name == "Exit"
    assert run("sleep 30", timeout=0.4).error.name == "Timeout"
    assert said(run("echo $x")) == "5\n", "an interrupt keeps the state"
    assert "3" in run("exit 3").error.value
    assert said(run("echo [$x]")) == "[]\n"
    assert run("a\0b").error is not None
    assert run("while :; do :; done", timeout=0.4).error.name == "Timeout"
    assert said(run("echo ok")) == "ok\n"


def test_javascript_keeps_its_state():
    with Sandbox.create(limits=Limits(seconds=20, memory_mb=2048)) as box:
        needs(box, "node")

        def run(code: str, **more: Any) -> Execution:
            return box.run_code(code, language="javascript", **more)

        assert run("const x = 5; let f = (y) => y * x; f(2)").text == "10"
        assert run("console.log('out'); f(3)").text == "15"
        error = run("throw new TypeError('no')").error
        assert (error.name, error.value) == ("TypeError", "no")
        assert run("await Promise.resolve(x + 1)").text == "6"
        assert run("while (true);", timeout=0.5).error.name == "Timeout"
        assert run("x").text == "5"
        assert run("throw null").error is not None
        assert run("process.exit(4)").error is not None
        assert run("1 + 1").text == "2"
        assert run("await Promise.resolve(process.env.WORD)", env={"WORD": "call"}).text == "'call'"
        assert run("const nothing = process.env.WORD", env={"WORD": "call"}).text is None
        assert run("process.env.WORD ?? 'none'").text == "'none'"


def test_a_forged_line_of_a_session_harms_itself_alone(box):
    needs(box, "bash")
    box.run_code(
        "for fd in /proc/self/fd/*; do printf '99 0 {\\n1 0 [[[[\\n' > $fd; done 2>/dev/null",
        language="bash",
        timeout=2,
    )
    box.restart_context("default-bash")
    assert said(box.run_code("echo ok", language="bash")) == "ok\n"
    assert box.run_code("1 + 1").text == "2"


def test_a_language_is_of_its_context(box):
    needs(box, "bash")
    name = box.create_context(language="bash")
    assert said(box.run_code("echo $((1 + 1))", context=name)) == "2\n", "the context says the language"
    with pytest.raises(InvalidArgument, match="bash"):
        box.run_code("1", context=name, language="python")
    box.remove_context(name)
