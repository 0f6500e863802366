r"""Mathematical answers that are easily graded wrong, by class: gold answer, right ones, wrong ones."""

CASES = {
    "units": [
        (
            "5",
            (
                r"5\text{ cm}",
                "5 cm",
                "5 apples",
                r"5\,\mathrm{kg}",
                r"5\text{ miles per hour}",
                "5 square feet",
                r"\$5",
                "5 dollars",
                r"5^\circ",
                r"5\text{m}",
                "£5",
                r"5\text{ units}^2",
            ),
            (
                r"5\text{ or 6}",
                r"5\text{.7}",
                r"5\text{7}",
                r"5\text{ and }6",
                "5 pi",
                "5 million",
                "5 dozen",
                "5 hundred",
                "5 xy",
                "5 ab",
                "5 x",
                "5 squared",
                "5 factorial",
                "5 percent of 3",
                "5 halves",
                "5 tenths",
                "5 or six",
                "5 remainder 2",
                r"5\text{ thousand}",
                r"5\text{x}",
                "5 plus",
                "5 minus one",
                "5 sin",
                "5 theta",
                "5 not",
                "5 mod 7",
                "5 per cent of 10",
                r"5\text{!}",
                r"5\text{ to }7",
                "5k",
                "5 M",
                r"5\text{i}",
                "5 twice",
                "5 double",
                "5 root",
                "5 if even",
                "5 less",
                "5 more",
                "5 each or 6",
            ),
        ),
        (
            r"15\mbox{ cm}^2",
            ("15", r"15\text{ cm}^2", "15 cm^2", "15 square centimeters"),
            (r"15\text{ cm}^3", r"15\text{ m}^2", r"15\text{ cm}", "15 cm", "15 feet", "16 cm^2"),
        ),
        (r"5.4 \text{ cents}", ("5.4", "5.4 cents"), (r"\$5.4", "5.4 dollars", "540", "54 cents")),
        (
            r"90^\circ",
            ("90", "90 degrees", r"90^{\circ}", r"90\text{ degrees}"),
            ("90 radians", "91", r"\pi/2 + 1", "90 percent"),
        ),
        (r"10\text{ m/s}", ("10", r"10\text{ m/s}", "10 m/s"), (r"10\text{ km/h}", "10 s")),
        (
            "18",
            ("$18.00", "18 eggs", r"\$18"),
            ("18.01", "$1.8", "18 hundred", "eighteen or so", "1 8", "18 cents and 5", "-$18"),
        ),
    ],
    "choices": [
        (
            "A",
            ("A", r"\text{A}", "(A)", r"\textbf{(A)}", "A.", r"\text{(A) }", "A)"),
            (
                "B",
                "A) or B)",
                "A or B",
                "A, B",
                "AB",
                "A and B",
                "not A",
                "(A)(B)",
                "A/B",
                "A B",
                "Answer",
                "(B) A",
                r"\text{A or B}",
                r"A\text{ or }B",
                "A; B",
                "all",
                "A-B",
                "A+B",
                "A,C,D",
                r"\neg A",
            ),
        ),
        (
            r"\text{(C)}",
            ("C", "(C)", "c", "C)", "(c) 12", r"\textbf{(C)}", r"\text{C}", "(C) 12"),
            (
                "(D)",
                "Cat",
                "C or D",
                "(C) or (D)",
                "C and D",
                "(C), (D)",
                "C) D)",
                "(C) not",
                "(C)(D)",
                r"\text{(C) or (D)}",
                "C D",
                "A, C",
                "not C",
                "(C) 12 or (D) 13",
                "CD",
                "C/D",
                "",
                "neither C nor D",
            ),
        ),
        (
            r"\text{even}",
            ("even", "Even", r"\text{even}", r"\textbf{even}"),
            ("odd", "even or odd", "not even", "even, odd", "uneven", r"\text{even and odd}", "neither", "evenly", "e"),
        ),
        (r"\text{Evelyn}", ("Evelyn", "evelyn"), ("Evelyn or Bob", "Evelyn, Bob", "Eve", "not Evelyn", "Bob")),
        (r"\text{Yes}", ("yes", "Yes"), ("no", "yes and no", "yes/no", "Yes no")),
    ],
    "several answers": [
        (
            "3, 5, 7",
            ("7, 3, 5", "3,5,7", "3, 5 and 7", r"3,\ 5,\ 7", r"\{3, 5, 7\}"),
            ("3, 5", "3", "3, 5, 7, 9", "3 + 5 + 7", "15", "3, 5, -7", "357", "3, 5, 7 or 8", "3.5, 7", "3, 57"),
        ),
        (
            r"1 \pm \sqrt{19}",
            (r"1 - \sqrt{19}, 1 + \sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}", r"1\pm\sqrt{19}"),
            (r"1 + \sqrt{19}", r"1 - \sqrt{19}", r"1 \pm \sqrt{18}", r"\pm 1 + \sqrt{17}", r"2 \pm \sqrt{19}"),
        ),
        (r"\pm 3", ("3, -3", r"-3, 3", r"\pm 3", "3 or -3", r"x = \pm 3"), ("3", "-3", r"\pm 4", "0", "9", "3, 3")),
        (r"2 \text{ or } 3", ("2, 3", "3 or 2", r"2\text{ and }3"), ("2", "3", "6", "23", "2/3", "2.3")),
        ("x=2, y=3", ("x=2, y=3", r"x = 2,\ y = 3"), ("x=3, y=2", "x=2", "y=3", "2")),
    ],
    "tiny and huge": [
        (
            "2^{-98}",
            (r"\frac{1}{2^{98}}", "2^{-98}", r"\left(\frac12\right)^{98}", r"0.5^{98}"),
            ("2^{-99}", "0", "2^{-97}", "2^{98}", r"\frac{1}{2^{99}}", "10^{-30}"),
        ),
        (
            "10^{-10}",
            ("1/10^{10}", "0.0000000001", r"1\times10^{-10}", "10^{-10}"),
            ("10^{-11}", "0", "0.000000001", "-10^{-10}", r"2\times10^{-10}"),
        ),
        (
            "0",
            ("0", "0.0", "-0", "0/5"),
            ("10^{-9}", "0.0000001", "10^{-20}", "1e-9", "-0.000001", r"\emptyset", "O", "o"),
        ),
        (
            "10^{20}",
            ("100000000000000000000", r"10^{20}", r"10^{10}\cdot10^{10}"),
            ("10^{20}+1", "10^{19}", "10^{21}", "99999999999999999999", "100000000000000000001"),
        ),
        (
            "2^{100}",
            ("1267650600228229401496703205376", "4^{50}"),
            ("1267650600228229401496703205377", "2^{101}", r"1.2676506\times10^{30}", "2^{99}"),
        ),
        (
            "1000000",
            ("10^6", "1,000,000", r"1\,000\,000", r"1\;000\;000", "1 000 000", r"1{,}000{,}000"),
            ("1000000.5", "100000", "1,000,00", "1000001", r"1\,000\,00", "1 000", "1, 000, 000"),
        ),
        (
            r"\frac{1}{1000000007}",
            ("1/1000000007", r"\dfrac{1}{1000000007}"),
            (r"\frac{1}{1000000008}", "0", "0.000000001", "1/1000000009"),
        ),
        ("20!", ("2432902008176640000", "20!"), ("2432902008176640001", "19!", "21!", "20")),
        (r"e^{100}", (r"e^{100}", r"\exp(100)"), (r"e^{100}+1", "e^{99}", "0")),
        (
            "123456789012345678",
            ("123456789012345678", "123,456,789,012,345,678"),
            ("123456789012345679", "123456789012345680", "1.23456789012345678"),
        ),
    ],
    "fractions and decimals": [
        (
            r"\frac{1}{3}",
            (
                r"0.\overline{3}",
                r"0.\bar{3}",
                r"0.\dot{3}",
                "1/3",
                r"\frac13",
                "0.333333",
                r".\overline{3}",
                r"0.3\overline{3}",
                r"\frac{2}{6}",
            ),
            (
                "0.33",
                "0.3",
                "3",
                r"0.\overline{4}",
                r"0.\overline{33}4",
                r"0.3\overline{4}",
                "1/3.1",
                r"-0.\overline{3}",
                "0.3333",
            ),
        ),
        (
            r"0.\overline{27}",
            (r"\frac{3}{11}", "27/99", r"0.\overline{27}", r"0.\overline{2727}"),
            ("0.27", r"0.\overline{72}", r"0.2\overline{7}", r"\frac{27}{100}"),
        ),
        (
            r"1\frac{4}{5}",
            ("9/5", "1.8", "1 4/5", r"1\frac45"),
            ("4/5", "14/5", "1/4/5", "1.45", r"1\cdot\frac{4}{5}", "1, 4/5"),
        ),
        (r"2\frac{1}{2}", ("5/2", "2.5", r"\frac{5}{2}"), ("1", "21/2", "2/2", "-2.5")),
        (r"-1\frac{1}{2}", ("-1.5", r"-\frac{3}{2}", "-3/2"), ("-0.5", r"\frac{1}{2}", "1.5")),
        ("0.125", ("1/8", r"\frac18", ".125", "0.1250", "12.5%"), ("0.12", "0.13", "1.25", "8", "0.125%")),
        (r"\frac{3}{4}", ("0.75", "75%", "3/4", r"\frac{6}{8}"), ("4/3", "0.34", "75", "3,4", "3:4", "34", "0.75%")),
        (r"\frac{22}{7}", ("22/7", r"3\frac17"), (r"\pi", "3.14", "3.142")),
        ("0.1", ("1/10", "10%", ".1"), ("0.10001", "0.01", "1/9", "0.1%", r"0.\overline{1}")),
    ],
    "percent": [
        (r"50\%", ("50", "0.5", "50%", "1/2", "50 percent", r"50\ \%"), (r"0.5\%", "5", "500", "50%%5", "5%", "0.05")),
        ("50", ("50%", r"50\%"), ("0.5%", "0.50", "50% or 60%", "50% more and 3")),
        (r"12.5\%", ("12.5", "0.125", r"\frac18"), ("125", "1.25", "12", "13")),
    ],
    "separators": [
        (
            "2125",
            ("2,125", r"2{,}125", r"2,\!125", "2 125", r"2\,125"),
            ("2,1,25", "21,25", "2.125", "2, 125", "(2,125)", "2;125"),
        ),
        ("11,\\! 111,\\! 111,\\! 100", ("11111111100", "11,111,111,100"), ("11,111,111,1", "1,111,111,100")),
        ("(1,234)", ("(1,234)", "(1, 234)"), ("1234", "(1234)", "(234,1)", "(1,235)", "1.234")),
        ("1.5", ("1.50", "3/2"), ("1,5,0", "15", "1.5.0", "1..5", "1.5,0")),
    ],
    "intervals": [
        (
            "[3,4)",
            ("[3,4)", r"3 \le x < 4", r"x \in [3,4)"),
            ("(3,4)", "[3,4]", "(3,4]", "[3,5)", "[4,3)", r"3 < x \le 4", "3,4", "3.5"),
        ),
        (
            r"(-\infty, 2) \cup (3, \infty)",
            (r"(-\infty,2)\cup(3,\infty)", r"(3,\infty)\cup(-\infty,2)"),
            (
                r"(-\infty, 2] \cup (3, \infty)",
                r"(-\infty,2)",
                r"(-\infty,2)\cap(3,\infty)",
                r"(2,3)",
                r"(-\infty,3)\cup(2,\infty)",
            ),
        ),
        (
            r"x \in [-2,7]",
            ("[-2,7]", r"-2 \le x \le 7", r"-2\leq x\leq 7"),
            ("(-2,7)", "[-2,8]", "-2,7", "[2,7]", r"-2 < x < 7", r"x\notin[-2,7]"),
        ),
        ("x > 5", ("x>5", r"5 < x", r"(5,\infty)"), ("x < 5", r"x \ge 5", "x = 5", "5", "x > 6", r"x\ne5", "-x > 5")),
        (r"x \le 2", (r"x\leq2", r"(-\infty,2]"), ("x<2", r"x\ge2", "x=2", "2")),
        (r"(0,1)", ("(0,1)", r"\left(0,1\right)"), ("[0,1]", "(1,0)", "0,1", r"\{0,1\}", "(0,1]", "(0,1,2)", "0.1")),
    ],
    "sets and tuples": [
        (
            r"\{1,2,3\}",
            (r"\{3,2,1\}", r"\{1, 2, 3\}", r"\left\{1,2,3\right\}"),
            (r"\{1,2\}", "(1,2,3)", "6", r"\{1,2,4\}", r"\{1,2,3,4\}", "123", "[1,3]"),
        ),
        (
            "(1,2,3)",
            ("(1, 2, 3)", r"\left(1,2,3\right)"),
            ("(3,2,1)", "(1,2)", r"\{3,2,1\}", "1,3,2", "(1,2,3,4)", "(1,2,-3)", "[1,2,3]", "6"),
        ),
        (
            r"\left(\frac{1}{2}, -3\right)",
            ("(0.5,-3)", "(1/2,-3)"),
            ("(-3,1/2)", "(1/2,3)", "(0.5,-3.1)", "(1/2)-3", "-2.5"),
        ),
        (r"\emptyset", (r"\emptyset", r"\varnothing", r"\{\}"), ("0", r"\{0\}", r"\{\emptyset\}", "none of them 5")),
        (
            "(3,4),(5,6)",
            ("(5,6),(3,4)", "(3,4), (5,6)"),
            ("(3,4)", "(3,5),(4,6)", "(4,3),(6,5)", "(3,4,5,6)", "(3,4),(5,7)"),
        ),
    ],
    "matrices": [
        (
            r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
            (
                r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}",
                r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
                r"\begin{pmatrix} 1.0 & 2 \\ \frac62 & 4 \end{pmatrix}",
            ),
            (
                r"\begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix}",
                r"\begin{pmatrix} 1 & 2 & 3 & 4 \end{pmatrix}",
                r"\begin{pmatrix} 1 & 2 \\ 3 & 5 \end{pmatrix}",
                "-2",
                "(1,2,3,4)",
                r"\begin{pmatrix} 1 & 2 \end{pmatrix}",
                r"\begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix}",
                r"2\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
            ),
        ),
        (
            r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}",
            (r"\begin{pmatrix} 0.2 \\ -3.6 \end{pmatrix}",),
            (
                r"\begin{pmatrix} 0.2 \\ 3.6 \end{pmatrix}",
                r"\begin{pmatrix} 1/5 & -18/5 \end{pmatrix}",
                r"\begin{pmatrix} -18/5 \\ 1/5 \end{pmatrix}",
            ),
        ),
        (
            r"\begin{pmatrix} 2^{-99} \\ 1 \end{pmatrix}",
            (r"\begin{pmatrix} 2^{-99} \\ 1 \end{pmatrix}",),
            (r"\begin{pmatrix} 2^{-98} \\ 1 \end{pmatrix}", r"\begin{pmatrix} 0 \\ 1 \end{pmatrix}"),
        ),
    ],
    "complex": [
        ("-1", (r"e^{i\pi}", "i^2", "-1", r"e^{\pi i}"), ("1", "i", r"e^{2i\pi}", r"e^{\pi}", "-i", "i^4")),
        ("i", (r"\sqrt{-1}", "i", r"e^{i\pi/2}"), ("-i", "1", "-1", r"\sqrt{1}", "j+1", r"-\sqrt{-1}")),
        ("3+4i", ("4i+3", "3 + 4i", r"3+4\sqrt{-1}"), ("3-4i", "4+3i", "5", "7i", "3+4", "(3,4)", "3+4j+1")),
        (r"\frac{1+i}{2}", (r"\frac12+\frac{i}{2}", "0.5+0.5i"), (r"\frac{1-i}{2}", "1+i", r"\frac12")),
        ("2i", (r"\sqrt{-4}", "2i", r"i\cdot 2"), ("-2i", "2", r"\sqrt{4}", "i^2", "2")),
    ],
    "expressions": [
        ("2k+2", ("2(k+1)", "2+2k", r"2\cdot(k+1)"), ("2k+1", "2k", "4k", "2m+2", "2(k+2)", "2k-2", "2K+3")),
        (
            r"11\sqrt2",
            (r"11\sqrt{2}", r"\sqrt{242}", r"11\cdot 2^{1/2}"),
            (r"11\sqrt{3}", "15.5", "15.556", "22", r"\sqrt{11\cdot2}", r"11+\sqrt2"),
        ),
        (r"\pi", (r"\pi", r"\frac{2\pi}{2}"), ("3.14", "3.1416", "22/7", "180", r"2\pi", "p", "pie")),
        ("x^2+1", ("1+x^2", r"x\cdot x+1"), ("x^2+2", "x^2-1", "x+1", "y^2+1", "(x+1)^2", "x^2+1=0", "x^3+1")),
        (r"\frac{x+1}{x-1}", ("(x+1)/(x-1)", r"1+\frac{2}{x-1}"), (r"\frac{x-1}{x+1}", "x+1/x-1", "-1")),
        (
            "6",
            ("3!", "2*3", r"2\cdot3", "12/2", r"\sqrt{36}"),
            (
                "3",
                "3!!",
                "2+3",
                "6!",
                "6x",
                "-6",
                "6,6",
                "6=7",
                r"\ne 6",
                "<6",
                ">6",
                r"\ge 6",
                r"6\pm1",
                "6?7",
                "6/",
                "6^2",
                "6'",
                "6;7",
                "6|7",
                "6:7",
                r"6\quad7",
                "6..",
                r"\overline{6}5",
                "6_7",
                "6e1",
                "{6}{7}",
                "6~7",
                r"\neq 6",
                r"\not= 6",
                "x=6=7",
                r"6\to7",
                r"6\text{ }7",
                r"6\%7",
                r"6\cup7",
                r"\approx 6.1",
            ),
        ),
        ("52_8", ("52_{8}", "52"), ("52_9", "42", "52_{10}", "25_8")),
        ("x=5", ("5", "x = 5", "x=5.0"), ("x=6", "y=5", "x=5y", "x\\ne5", "5=6", "x>5")),
        ("y = 2x + 3", ("y=2x+3", "y = 3 + 2x", "2x+3"), ("y=2x-3", "x=2y+3", "y=3x+2", "2x", "y=2")),
        (r"\log_2 8", ("3", r"\log_2(8)"), ("2", "8", r"\log_8 2", "4")),
        (r"\sin 30^\circ", (r"\sin 30^\circ", r"\sin(30^\circ)"), (r"\cos 30^\circ", "30", r"\sin 60^\circ")),
    ],
    "text around": [
        (
            "5",
            ("5.", " 5 ", r"\ 5", r"\boxed{5}", r"\textbf{5}", "+5", "{5}", "(5)"),
            (
                "five",
                "I do not know",
                "5 or 6",
                "about 5 or 6",
                "the answer is not 5",
                "5 is wrong",
                r"\text{not }5",
                "5, but maybe 6",
                "unknown",
                "?",
                "",
                " ",
                ".",
                r"\text{}",
                r"\,",
                "--5-",
                "5-",
                "-5",
                "5+",
                "5 5",
                "55",
                "5\n6",
                "5\\\\6",
                "4 5",
                "answer: 5 or 7",
                "5 (or 6)",
                "[5,6]",
                "5...6",
                "5 – 6",
                "5—6",
                "V",
                "٥٦",
            ),
        ),
    ],
}


#: Pairs that were written after the grader, to see whether it had only learnt the list above.
MORE_RIGHT = r"""
12|12 \text{ inches}
12|12\text{ in.}
12|12\,\text{cm}
12|$12$
12|12 students
12|x=12
12|12.0
12|\frac{24}{2}
12|12^{\circ}
12|12 km
12|12 hours
12|12 ways
12|\text{12}
12|12\%
3.5|7/2
3.5|3\frac{1}{2}
3.5|\$3.50
3.5|3.5 hours
2,500|2500
2,500|\$2,500.00
2500|2,500 dollars
\frac{5}{12}|5/12
\frac{5}{12}|0.41\overline{6}
\frac{2}{3}|0.666667
-\frac{1}{2}|-0.5
-\frac{1}{2}|\frac{-1}{2}
\sqrt{2}|2^{1/2}
\frac{\sqrt{3}}{2}|\frac{1}{2}\sqrt{3}
\frac{1}{\sqrt 2}|\frac{\sqrt2}{2}
4\pi|4\pi
4\pi|\pi\cdot 4
(2,-3)|(2, -3)
(2,-3)|\left(2,-3\right)
1,2,3|3,2,1
1, -2|x = 1, -2
\{1,2\}|\{2,1\}
[0,\infty)|x \ge 0
[0,\infty)|[0, \infty)
(-\infty,-1)\cup(1,\infty)|(1,\infty)\cup(-\infty,-1)
x^2-1|(x-1)(x+1)
a+b|b+a
\frac{n(n+1)}{2}|n(n+1)/2
2^{10}|1024
\binom{5}{2}|10
\text{Monday}|Monday
\text{(B)}|B
D|(D)
\text{odd}|odd
5i|i5
1+2i|2i+1
\begin{pmatrix} 1 \\ 2 \end{pmatrix}|\begin{pmatrix}1\\2\end{pmatrix}
\begin{pmatrix} 0 & 1 \\ 1 & 0 \end{pmatrix}|\begin{bmatrix} 0 & 1 \\ 1 & 0 \end{bmatrix}
\frac{\pi}{6}|\pi/6
\log 2|\log 2
\ln 3|\ln(3)
25\pi\text{ cm}^2|25\pi
6\sqrt{3}\text{ units}|6\sqrt3
0.08|8\%
0.08|2/25
10:30|10:30
1:2|1:2
3x+2y=7|2y+3x=7
y=x^2|y=x^2
x=\frac{1}{2}|0.5
10^{-3}|0.001
1.5\times10^{6}|1500000
-7|-7
-7|- 7
70 \text{ mph}|70 miles per hour
110^\circ|110 degrees
\text{red}|Red
\frac{3}{5}|3 / 5
100!|100!
\cot x|\cot x
3\sqrt{13}|\sqrt{117}
p-q|p-q
\text{Navin}|navin
16 + 8i|8(2+i)
f(x)=2x|2x
"""
MORE_WRONG = r"""
12|12 or 13
12|12\text{ or }13
12|12\text{ hundred}
12|12\text{ and a half}
12|12 and a half
12|12 1/2
12|12\frac12
12|12\ \text{to}\ 14
12|12!
12|12^2
12|-12
12|\sim 12
12|12x
12|12\pi
12|12\sqrt{2}
12|12i
12|12e
12|12\cdot10^3
12|12e3
12|1.2e2
12|\text{not }12
12|12,
12|12,13
12|(12,13)
12|\{12,13\}
12|[12]
12|12-ish but 13
12|0.12
12|12 or so
12|12\infty
12|12\div 2
12|12\%\text{ of }5
12|12\,13
12|12\text{th}
12|1\overline{2}
12|12\overline{3}
12|\overline{12}3
12|12 \pm 0.5
12|12\ldots 15
12|\lfloor 12.7\rfloor+1
12|12\lor13
12|12\neq13
12|12=12=13
12|12\text{ }13
12|\frac{12}{1}+1
12|12\mathrm{ million}
12|12\text{K}
12|12\mathbf{0}
12|12\textbf{0}
12|12\mbox{00}
12|12\operatorname{or}13
12|1\text{2}3
12|a=12, b=13
12|\underbrace{12}_{a}
12|\stackrel{12}{13}
12|12^{\circ}5
12|12 and 13 hours
12|12h 30min
12|12 hours 30 minutes
12|12 feet 6 inches
12|12\text{ ft }6\text{ in}
12|twelve
12|12 dozen eggs
12|12 pairs
12|12 times 5
12|12 more than 13
12|12 choose 2
12|12 \choose 2
12|\binom{12}{2}
3.5|3,5
3.5|3.55
3.5|35
3.5|7
3.5|3.5\times 10
2,500|2,5
2,500|25,00
2,500|2.500
\frac{2}{3}|0.67
\frac{2}{3}|0.66
\frac{2}{3}|\frac{3}{2}
\frac{2}{3}|2,3
\frac{2}{3}|0.\overline{67}
\frac{5}{12}|0.4\overline{16}
\sqrt{2}|1.41
\sqrt{2}|1.41421
\sqrt{2}|2
\sqrt{2}|\sqrt[3]{2}
\sqrt{2}|\pm\sqrt2
4\pi|12.566
4\pi|4
4\pi|4\pi^2
4\pi|4p
(2,-3)|(-3,2)
(2,-3)|2,-3
(2,-3)|[2,-3]
(2,-3)|(2,3)
(2,-3)|(2,-3,0)
(2,-3)|\{2,-3\}
1,2,3|1,2,4
1,2,3|1,2
1,2,3|123
1,2,3|1,2,2,3,3
\{1,2\}|(1,2)
\{1,2\}|[1,2]
\{1,2\}|\{1,2,2.5\}
[0,\infty)|(0,\infty)
[0,\infty)|x > 0
[0,\infty)|x \le 0
[0,\infty)|[0,\infty]
[0,1]|[0,1)
[0,1]|0 < x < 1
[0,1]|0 \le x < 1
x^2-1|x^2+1
x^2-1|(x-1)^2
a+b|a-b
a+b|a+c
a+b|ab
\frac{n(n+1)}{2}|\frac{n(n-1)}{2}
\text{Monday}|Monday or Tuesday
\text{Monday}|Tuesday
\text{Monday}|not Monday
\text{Monday}|Mon
\text{(B)}|(A)
\text{(B)}|(A) or (B)
\text{(B)}|B, C
\text{(B)}|all but (B)
\text{(B)}|(B) is wrong, (C)
\text{(B)}|Because
\text{(B)}|B?C
D|D and E
D|D or none
D|C. D is wrong
5i|5
5i|-5i
5i|5j
1+2i|1-2i
1+2i|2+i
1+2i|3i
\begin{pmatrix} 1 \\ 2 \end{pmatrix}|\begin{pmatrix}2\\1\end{pmatrix}
\begin{pmatrix} 1 \\ 2 \end{pmatrix}|\begin{pmatrix}1&2\end{pmatrix}
\begin{pmatrix} 1 \\ 2 \end{pmatrix}|(2,1)
\frac{\pi}{6}|30
\frac{\pi}{6}|\frac{\pi}{3}
\frac{\pi}{6}|0.52
\ln 3|\log_2 3
\ln 3|1.0986
25\pi\text{ cm}^2|25
25\pi\text{ cm}^2|25\pi\text{ cm}
25\pi\text{ cm}^2|25\pi\text{ m}^2
0.08|0.8
0.08|0.08\%
0.08|8
10:30|10:31
10:30|10
10:30|1030
10:30|\frac{1}{3}
1:2|2:1
1:2|1:3
3x+2y=7|3x+2y=8
3x+2y=7|3x-2y=7
3x+2y=7|7
y=x^2|y=x^3
x=\frac{1}{2}|y=\frac12
x=\frac{1}{2}|x=2
10^{-3}|10^{-4}
10^{-3}|0
10^{-3}|0.01
10^{-12}|2\cdot10^{-12}
10^{-12}|0
(10^{-12},1)|(10^{-13},1)
\{10^{-12},1\}|\{10^{-13},1\}
[10^{-12},1]|[10^{-13},1]
(-\infty,10^{-12})\cup(1,\infty)|(-\infty,10^{-13})\cup(1,\infty)
10^{-12}x|10^{-13}x
x+10^{-12}|x
x+10^{-12}|x+10^{-13}
x=10^{-12}|x=10^{-13}
10^{-12}i|10^{-13}i
x>10^{-12}|x>10^{-13}
3,10^{-12}|3,10^{-13}
10^{-12}\pi|10^{-12}
1.5\times10^{6}|1.5\times10^{5}
1.5\times10^{6}|1.5
-7|7
-7|--7
70 \text{ mph}|70 km/h
70 \text{ mph}|70 feet
110^\circ|110 radians
110^\circ|110 seconds
\text{red}|red or blue
\text{red}|reddish
\text{red}|infrared
100!|100
100!|101!
3\sqrt{13}|3\sqrt{12}
3\sqrt{13}|10.8167
16 + 8i|16-8i
0|\epsilon
0|10^{-100}
0|1/10^{50}
0|-10^{-15}
1|0.9999999
1|1.0000001
1|0.999999999999
1|1+10^{-30}
1|\frac{10^{30}+1}{10^{30}}
1|\sqrt{1+10^{-20}}
10^{100}|10^{100}+1
10^{100}|10^{101}
9^{9}|9^{8}
7|7_8
7|111_2
7|2+5=8
7|7\text{ (or 8)}
7|7;8
7|7 8
7|[7,8]
7|\{7\}\cup\{8\}
7|x\in\{7,8\}
7|7\vee8
7|x=7\text{ or }x=8
7|x=7 \text{ or } 8
7|x_1=7,x_2=8
7|6.9999999
7|\max(7,8)
7|\min(7,3)
7|7\bmod 3
7|7\pmod{8}
7|\gcd(7,14)+1
"""


def answers(right):
    """(class, gold, answer) for all right or all wrong ones."""
    listed = [(kind, gold, one) for kind, rows in CASES.items() for gold, *both in rows for one in both[not right]]
    more = (MORE_RIGHT if right else MORE_WRONG).strip().split("\n")
    return listed + [("mixed", *line.split("|", 1)) for line in more]
