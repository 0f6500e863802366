"""Grade untrusted programs. Needs: Linux and a base install."""

from rollenv.sandbox import Limits, Pool

TESTS = [("3 4\n", "7\n"), ("10 -2\n", "8\n")]
PROGRAMS = {
    "right": "a, b = map(int, input().split())\nprint(a + b)",
    "wrong": "a, b = map(int, input().split())\nprint(a - b)",
    "never ends": "while True: pass",
    "deletes files": "import shutil; shutil.rmtree('/usr')",
    "phones home": "import urllib.request; urllib.request.urlopen('http://192.0.2.1', timeout=1)",
    "eats memory": "x = bytearray(8 << 30)",
}

with Pool(2, limits=Limits(seconds=1, memory_mb=256)) as pool:
    for name, program in PROGRAMS.items():
        passed = True
        for given, expected in TESTS:
            run = pool.run(program, stdin=given)
            passed = run.exit_code == 0 and run.stdout == expected
            if not passed:
                break
        why = "timeout" if run.timed_out else run.stderr.strip().rpartition("\n")[2][:60]
        print(f"{name:14} {'pass' if passed else 'fail'}  {why}")
        assert passed == (name == "right")
