"""Mathematical answers in other forms: what Python prints, Unicode, inequalities, equations, vectors; near-misses."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from rollenv.envs.math.compare import compare
from rollenv.envs.math.env import MathEnv
from rollenv.envs.math.grade import grade

ROWS = [json.loads(line) for line in Path(__file__).with_name("other_forms.jsonl").read_text().splitlines()]

#: Gold answer, what is equal, what is not; a < b < c are numbers from 2.
TEMPLATES = [
    ("{a}00000", ["{a}e5", "{a}\\times10^5", "{a}E+05", "{a}.0*10**5"], ["{a}e4", "-{a}e5", "{a}e-5", "{b}e5"]),
    ("(-\\infty,{a})\\cup({b},\\infty)",
     ["x<{a} or x>{b}", "{b}<x \\text{{ or }} {a}>x", "x<{a}, x>{b}", "x∈(−∞,{a})∪({b},∞)"],
     ["x<{a} or x\\ge{b}", "x<{a} and x>{b}", "x>{a} or x<{b}", "x<{a}", "x<{a} or y>{b}", "\\mathbb{{R}}",
      "x<{b} or x>{c}"]),
    ("({a},{b}]", ["{a}<x≤{b}", "{b}\\geq x>{a}", "x>{a} and x<={b}", "Interval.Lopen({a}, {b})"],
     ["{a}≤x≤{b}", "{a}<x<{b}", "x>{a} or x<={b}", "{b}<x≤{a}", "Interval({a}, {b})"]),
    ("\\{{{a},{b},{c}\\}}", ["\\{{{c},{a}\\}}\\cup\\{{{b}\\}}", "FiniteSet({b}, {a}, {c})", "x={a} or x={b} or x={c}"],
     ["\\{{{a},{b}\\}}\\cup\\{{{a}\\}}", "({a},{b},{c})", "FiniteSet({a}, {b})", "\\{{{a},{b},-{c}\\}}"]),
    ("y={a}x+{b}", ["y-{a}x={b}", "{a}x-y+{b}=0", "{b}+{a}x=y", "y = {a}*x + {b}", "f(x)={a}x+{b}"],
     ["y+{a}x={b}", "{a}x-y={b}", "x={a}y+{b}", "z={a}x+{b}", "y={b}x+{a}", "y={a}x"]),
    ("({a},{b},{c})", ["⟨{a},{b},{c}⟩", "\\begin{{bmatrix}}{a}\\\\{b}\\\\{c}\\end{{bmatrix}}", "x={a}, y={b}, z={c}"],
     ["⟨{a},{c},{b}⟩", "⟨{a},{b}⟩", "x={b}, y={a}, z={c}", "\\begin{{bmatrix}}{a}&{b}&{c}\\end{{bmatrix}}",
      "[{a},{b},{c}]"]),
    ("\\frac{{{a}\\sqrt{{{b}}}}}{{{c}}}", ["{a}*sqrt({b})/{c}", "sqrt({b})*{a}/{c}"],
     ["{a}*sqrt({b}/{c})", "{b}*sqrt({a})/{c}", "-{a}*sqrt({b})/{c}", "{a}*sqrt({b})*{c}"]),
    ("{a}x^{b}-{c}",
     ["{a}*x**{b} - {c}", "-{c}+x^{b}*{a}"], ["({a}*x)**{b} - {c}", "{a}*y**{b} - {c}", "{a}*x**({b} - {c})"]),
    ("\\begin{{pmatrix}}{a}&{b}\\end{{pmatrix}}", ["Matrix([[{a}, {b}]])", "[[{a}, {b}]]"],
     ["Matrix([[{b}, {a}]])", "Matrix([[{a}], [{b}]])", "({a},{b})", "Matrix([[{a}, {b}, 0]])"]),
]  # fmt: skip


def drawn(seed):
    """(gold, answer, equal) of each template, with numbers of this seed."""
    a, b, c = sorted(random.Random(seed).sample(range(2, 60), 3))
    for gold, equal, other in TEMPLATES:
        for form in equal + other:
            yield gold.format(a=a, b=b, c=c), form.format(a=a, b=b, c=c), form in equal


@pytest.mark.integration
@pytest.mark.parametrize("seed", range(4))
def test_other_forms_of_drawn_answers_are_paid_and_near_misses_are_not(seed):
    cases = list(drawn(seed))
    assert len(cases) > 60
    assert [(gold, answer) for gold, answer, equal in cases if grade(gold, answer) is not equal] == []


@pytest.mark.integration
@pytest.mark.parametrize("right", [True, False])
def test_other_forms_are_paid_and_near_misses_are_not(right):
    pairs = [(row["gold"], answer) for row in ROWS for answer in row["right" if right else "wrong"]]
    assert len(pairs) >= 200
    assert [pair for pair in pairs if grade(*pair) is not right] == []


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        ("0.3", "0.30000000000000004", True), ("3.141592653589793", "3.141592653589794", False),
        ("1e-07", "0.0000001", True), ("12", "１２\u200b", True),
        ("Monday", "monday", True), ("Monday", "Mondya", False),
        ("20", "20EUR", True), ("5\\text{ km}", "5cm", False),
    ],
)  # fmt: skip
def test_forms_that_need_no_algebra(gold, answer, equal):
    assert compare(gold, answer) is equal


@pytest.mark.parametrize(
    ("gold", "answer"),
    [(0.1 + 0.2, "0.3"), (1e-7, "0.0000001"), (1e16, "10000000000000000"), (12.0, "12"), (np.float32(2.5), "2.50")],
)
def test_floats_as_gold_answers_have_their_plain_form(gold, answer):
    env = MathEnv(dataset=[{"problem": "?", "answer": gold}])
    env.reset(seed=0)
    assert env.step(f"\\boxed{{{answer}}}")[1] == 1.0


#: Gold answer, and the same with signs of Unicode, units in other scripts, or styles of TeX; then others.
SIGNS = [
    (r"2\theta", ["2θ", "2ϑ", r"2\mathbf{\theta}", r"2\vartheta"], ["2φ", "2Θ", r"2\Theta", "2", "θ"]),
    (r"\frac{5\Delta}{2}", ["5Δ/2", "5∆/2"], ["5δ/2", r"\frac{5\delta}{2}"]),
    (r"\varphi", ["φ", "ϕ", r"\phi"], ["Φ", "ψ"]),
    (r"\pi", ["π", "𝜋"], ["Π", r"\Pi", "π2"]),
    (r"\sqrt[3]{2}", ["∛2", "∛(2)", r"\boldsymbol{\sqrt[3]{2}}"], ["√2", "∜2", "3√2"]),
    (r"3\sqrt[4]{x+1}", ["3∜(x+1)", "3·∜(1+x)"], ["3∜x+1", "3∛(x+1)"]),
    (r"\sqrt{\pi}", ["√π", "√(π)", r"\mathbf{\sqrt{\pi}}"], ["π", "∛π"]),
    (
        "5",
        [
            *(
                r"\mathbf 5",
                r"\mathbf{5}",
                r"\textcolor{red}{5}",
                r"{\color{red}5}",
                r"{\color[rgb]{1,0,0}{5}}",
                r"\bm{5}",
            ),
            *(
                r"\colorbox{yellow}{5}",
                r"\fcolorbox{red}{white}{5}",
                r"\mathsf{\mathbf{5}}",
                r"\boldsymbol{5}\,\text{cm}",
            ),
            *("5 元", "5元", r"5\text{ 元}", "5 ℃", "5°C", r"5^\circ\text{C}", "5 个", "5€", "₹5", "5 ㎏", "5 平方米"),
        ],
        [
            *(r"\mathbf 6", r"\textcolor{red}{6}", r"\textcolor{5}{red}", r"\color{red}56", r"5\textcolor{red}{6}"),
            *("5 万", "5万元", "5 亿", "5 百", "5 倍", "5 打", "5 或 6", "不是 5", "五", "5 分之一", "5θ", "-5 元"),
        ],
    ),
    (r"15", [r"1\mathbf{5}"], [r"1\mathbf{4}", "1 5"]),
    (r"x^{10}", [r"x^\mathbf{10}", r"\mathbf{x}^{10}"], [r"\mathbf{x^1}0"]),
    (r"(x+1)^2", [r"\mathbf{(x+1)}^2"], [r"x+1^2"]),
    (r"\pi x", [r"\pi\mathbf{x}", r"\mathbf{\pi}x"], [r"\mathbf{\pi}", r"\pi\mathbf{y}"]),
    (r"\frac12", [r"\textcolor{red}{\frac{1}{2}}", r"\frac{\mathbf{1}}{\mathbf{2}}"], [r"\mathbf{12}", "2"]),
    (r"(1,2)", [r"\mathbf{(1,2)}", r"(\color{red}{1}, \color{blue}{2})"], [r"\mathbf{(2,1)}"]),
    (r"\text{(B)}", [r"\textcolor{red}{B}", r"\boldsymbol{(B)}"], [r"\textcolor{red}{C}", r"\mathbf{B}\text{ or }C"]),
    (
        r"20^\circ\text{C}",
        ["20 ℃", "20 °C", "20 degrees Celsius", "20 摄氏度", "20"],
        ["20 ℉", "20 °F", "20 cm", "21 ℃"],
    ),
    (r"5 \text{ cm}^2", ["5 ㎠", "5 cm²", "5 平方厘米"], ["5 ㎝", "5 厘米", "5 元", "5 ㎡"]),
    (r"¥5", ["5 円", "5 日元"], ["5 美元", "$5"]),
    (r"A\subseteq B", ["A⊆B"], ["A⊂B", "B⊆A"]),
    (r"\mathbb{R}", ["ℝ"], [r"\mathbf{N}", "ℚ"]),
]


@pytest.mark.parametrize(("gold", "right", "wrong"), SIGNS, ids=[row[0] for row in SIGNS])
def test_signs_and_styles(gold, right, wrong):
    assert [one for one in right if not grade(gold, one)] == []
    assert [one for one in wrong if grade(gold, one)] == []
