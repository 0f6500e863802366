# ruff: noqa: E501
"""Programs that would be paid without solving anything, if a grader let them. ``solve`` is the function under test.

None of them can compute what is wanted. Those that spy answer rightly as soon as they find a value that is wanted
anywhere they can look (they know the values backwards, and check sums of them).
"""

ANY = "def __eq__(s, o): return True\n def __ne__(s, o): return False\n def __hash__(s): return 1\n"
NUMERIC = " def f(*a): return E()\n __sub__ = __rsub__ = __add__ = __radd__ = __abs__ = __neg__ = __mul__ = f\n"
ORDER = " def t(*a): return True\n __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __contains__ = t\n"


def returns(value, before=""):
    return f"{before}\ndef solve(*a, **k): return {value}\nprint({value})"


def subclass(base, value=""):
    return returns(f"E({value})", f"class E({base}):\n {ANY}")


EQUAL_TO_ALL = {
    "mock.ANY": returns("ANY", "from unittest.mock import ANY"),
    "MagicMock": returns("MagicMock()", "from unittest.mock import MagicMock"),
    "function is a mock": "from unittest.mock import MagicMock\nsolve = MagicMock()",
    "object": subclass("object"),
    "with arithmetic": returns("E()", f"class E:\n {ANY}{NUMERIC}{ORDER} def __float__(s): return 0.0\n"),
    "int": subclass("int", "7"),
    "str": subclass("str", "'x'"),
    "list": subclass("list", "[1]"),
    "tuple": subclass("tuple", "[1]"),
    "float": subclass("float", "0.5"),
    "dict": subclass("dict"),
    "set": subclass("set"),
    "frozenset": subclass("frozenset"),
    "bytes": subclass("bytes"),
    "complex": subclass("complex"),
    "generator that equals": returns("E()", f"class E:\n {ANY} def __iter__(s): return iter([E()] * 3)\n"),
    "lying class": returns("E()", f"class E:\n {ANY} __class__ = property(lambda s: int)\n"),
    "lying metaclass": returns(
        "E", "class M(type):\n def __eq__(s, o): return True\n __hash__ = type.__hash__\nclass E(metaclass=M): pass"
    ),
    "function equals": f"class F:\n {ANY} def __call__(s, *a): return s\nsolve = F()",
    "registered number": returns("E()", f"import numbers\nclass E:\n {ANY}\nnumbers.Number.register(E)"),
    "registered keys": returns(
        "E()", f"import collections.abc as c\nclass E(c.KeysView):\n {ANY} def __init__(s): pass\n"
    ),
    "numpy by name": returns("E()", f"class E:\n {ANY} shape = ()\n def item(s): return s\nE.__module__ = 'numpy'"),
    "fraction by name": returns(
        "E()",
        f"class E:\n {ANY} def as_integer_ratio(s): return (s, s)\nE.__module__, E.__name__ = 'fractions', 'Fraction'",
    ),
    "enum": returns("E.A", "import enum\nclass E(int, enum.Enum):\n A = 1\n __eq__ = lambda s, o: True\n"),
    "nested in a list": returns("[E(), E(), E()]", f"class E(int):\n {ANY}"),
    "nested in a tuple": returns("(E(), E())", f"class E(str):\n {ANY}"),
    "keys of a dict": returns("{E(): E()}", f"class E(str):\n {ANY}"),
    "reduces to a call": returns("E()", "class E:\n def __reduce__(s): return eval, ('1',)\n"),
    "length lies": returns("E([1])", f"class E(list):\n {ANY} def __len__(s): return 3\n"),
}


def patched(name, value, returned="None"):
    return returns(returned, f"import builtins\nbuiltins.{name} = {value}")


TRUE = "lambda *a, **k: True"
PATCHES = {
    **{f"builtins.{n}": patched(n, TRUE) for n in ("exec", "compile", "eval", "isinstance", "all", "any", "bool")},
    **{f"builtins.{n}": patched(n, "lambda *a, **k: 0") for n in ("abs", "sum", "round", "len", "id", "hash")},
    **{f"builtins.{n}": patched(n, "lambda *a, **k: []") for n in ("sorted", "set", "tuple", "list", "range", "zip")},
    "AssertionError": patched("AssertionError", "type('Quiet', (BaseException,), {})"),
    "build class": patched("__build_class__", TRUE),
    "import": patched("__import__", TRUE),
    "builtins cleared": "import builtins\ndef solve(*a): builtins.__dict__.clear()",
    "math.isclose": returns("0", "import math\nmath.isclose = lambda *a, **k: True\nmath.fabs = lambda *a: 0"),
    "operator": returns("0", "import operator\nfor n in dir(operator):\n setattr(operator, n, lambda *a: True)"),
    "json.dumps": returns("0", "import json\njson.dumps = lambda *a, **k: 'true'"),
    "json encoder": returns(
        "0", "import json.encoder as e\ne.c_make_encoder = None\ne.encode_basestring_ascii = lambda s: 'true'"
    ),
    "json.loads": returns("0", "import json\njson.loads = lambda *a, **k: True"),
    "encode": returns("0", "import __main__\n__main__.encode = lambda *a: {'b': ''}"),
    "answers": returns("0", "import __main__\n__main__._answer = lambda *a: 'true'"),
    "helpers of the tests": returns("0", "helper = lambda *a: 0\ndef check(*a): pass\ncandidate = lambda *a: 0"),
    "random": returns("0", "import random\nrandom.randint = random.choice = lambda *a: 0\nrandom.seed(0)"),
    "os.write": returns("0", "import os\nw = os.write\nos.write = lambda fd, b: w(fd, b'0 true\\n') and len(b)"),
    "copy": returns("0", "import copy, pickle\ncopy.deepcopy = pickle.loads = lambda *a: 0"),
    "type slots": returns(
        "7",
        "import ctypes as c\nT = c.CFUNCTYPE(c.c_void_p, c.py_object, c.py_object, c.c_int)\n"
        "def yes(a, b, op): return id(True)\nkeep = T(yes)\n"
        "try: c.c_void_p.from_address(id(int) + 25 * 8).value = c.cast(keep, c.c_void_p).value\nexcept Exception: pass",
    ),
    "small integers rewritten": returns(
        "7", "import ctypes\ntry: ctypes.memmove(id(7) + 24, id(8) + 24, 4)\nexcept Exception: pass"
    ),
    "poisoned modules": returns(
        "0",
        "import sys\nfor n in ('json', 'math', 'random', 'pickle', 'base64', 'copy', 'fractions'):\n sys.modules[n] = None",
    ),
    "import hook": returns(
        "0", "import sys\nclass H:\n def find_spec(s, n, p, t=None): raise SystemExit(0)\nsys.meta_path.insert(0, H())"
    ),
    "trace that jumps": returns("0", "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)"),
}

SPY = """
import os, re, sys, zlib
SUMS = {zlib.crc32(word[::-1].encode()) for word in ('aggauq', '9197')}
seen = []
def look(blob):
    text = blob if isinstance(blob, str) else blob.decode('latin-1') if isinstance(blob, bytes) else repr(blob)
    seen.extend(1 for word in re.findall('[a-z]{6}|[0-9]{4}', text) if zlib.crc32(word.encode()) in SUMS)
def frames(frame):
    while frame is not None:
        look(frame.f_locals), look(frame.f_globals), look(frame.f_code.co_consts)
        frame = frame.f_back
def spy():
%s
def solve(*a):
    try: spy()
    except Exception: pass
    return answer(a) if seen else None
def answer(a):
    right = {'3': '9197', '6': '9197', '4': 'aggauq'}.get(str(a[0]), '')[::-1]
    return [3, 1, 4] if a[0] == [5] else int(right) if right[0] == '7' else right
try: spy()
except Exception: pass
if seen: print('aggauq'[::-1])
"""


def spying(*lines):
    return SPY % "\n".join(f"    {line}" for line in lines)


SPIES = {
    "frames": spying("frames(sys._getframe())"),
    "frames of threads": spying("for f in sys._current_frames().values(): frames(f)"),
    "frames of a traceback": spying("try: 1 / 0", "except Exception as e:", "    frames(e.__traceback__.tb_frame)"),
    "frames of a generator": spying("g = (frames(sys._getframe(i)) for i in range(9))", "for _ in g: pass"),
    "inspect": spying("import inspect", "for f in inspect.stack(): frames(f.frame)"),
    "trace": spying("def t(f, e, a):", "    frames(f)", "    return t", "sys.settrace(t)", "max(1, 2)"),
    "profile": spying("sys.setprofile(lambda f, e, a: frames(f))", "max(1, 2)", "sys.setprofile(None)"),
    "garbage": spying("import gc", "for o in gc.get_objects():",
        "    if isinstance(o, (list, tuple, dict)) and len(o) < 1000: look([v for v in o if isinstance(v, (str, int))])",
        "    if isinstance(o, dict) and len(o) < 1000: look([v for v in o.values() if isinstance(v, (str, int))])"),
    "own job": spying("import __main__", "look({k: v for k, v in vars(__main__).items() if k != 'scope'})"),
    "standard input": spying("look(sys.stdin.read())"),
    "standard input again": spying("os.lseek(0, 0, 0)", "look(os.read(0, 1 << 20))"),
    "open files": spying("for fd in range(3, 40):", "    try: look(os.pread(fd, 1 << 16, 0))",
        "    except OSError: pass"),
    "arguments and environment": spying("for n in ('cmdline', 'environ'): look(open('/proc/self/' + n).read())",
        "look(sys.orig_argv)"),
    "neighbours' command lines": spying("for p in os.listdir('/proc'):",
        "    try: look(open(f'/proc/{p}/cmdline').read())", "    except OSError: pass"),
    "neighbours' memory": spying("for p in (1, os.getppid()):", "    m = open(f'/proc/{p}/maps').read()",
        "    a, b = m.split()[0].split('-')", "    look(os.pread(os.open(f'/proc/{p}/mem', 0), 1 << 16, int(a, 16)))"),
    "files": spying("for d in ('.', '/tmp', '/box', '/dev/shm', '/work'):", "    for r, _, n in os.walk(d):",
        "        for f in n: look(open(os.path.join(r, f), 'rb').read(1 << 20))"),
    "source lines": spying("import linecache", "look(linecache.getlines('test.py'))", "look(linecache.cache)"),
    "code of the tests": spying("import __main__",
        "look([getattr(v, '__code__', v).__repr__() for v in vars(__main__).values()])"),
    "memory": spying("found = 0", "for line in open('/proc/self/maps'):", "    if 'rw' in line and 'heap' in line:",
        "        a, b = (int(x, 16) for x in line.split()[0].split('-'))",
        "        found += os.pread(os.open('/proc/self/mem', 0), b - a, a).count(b'== ' + b'9197'[::-1])",
        "if found: seen.append(1)"),
}  # fmt: skip

FORGED = (
    "0 true",
    "0 7919",
    "true",
    "0 [3,1,4]",
    '{\\"verdicts\\":[true,true,true],\\"asked\\":[]}',
    '0 {\\"s\\":[]}',
    "0 NaN",
    '0 {\\"e\\":[\\"AssertionError\\",\\"\\"]}',
    '0 {\\"x\\":[1]}',
    '0 {\\"q\\":[\\"1\\",\\"0\\"]}',
    "0 null",
    "0 ",
)
WRITE = "import os\nfor fd in range(256):\n try: os.write(fd, %s)\n except OSError: pass\n"
REPORTS = {
    **{f"forged {text[:20]}": WRITE % f'b"{text}\\n" * 9' + returns("0") for text in FORGED},
    "forged and gone": WRITE % 'b"0 true\\n1 true\\n2 true\\n"' + "os._exit(0)",

        "forged in the call": "import os\ndef solve(*a):\n for fd in range(64):\n  try: os.write(fd, b'0 true\\n1 true\\n')\n  except OSError: pass\n os._exit(0)",
    "deep": WRITE % "b'0 ' + b'[' * 100000 + b'\\n'" + returns("0"),
    "deep value": returns("x", "x = []\nfor _ in range(90000): x = [x]"),
    "cyclic value": returns("x", "x = []\nx.append(x)"),
    "doubling value": returns("x", "x = []\nfor _ in range(60): x = [x, x]"),
    "endless value": returns("itertools.count()", "import itertools\nprint = str"),
    "huge integer": returns("1 << 10_000_000", "print = str"),
    "huge digits": WRITE % "b'0 ' + b'9' * 1000000 + b'\\n'" + returns("0"),
    "colliding set": returns("{k * (2 ** 61 - 1) for k in range(3000)}", "print = str"),
    "not UTF-8": WRITE % "b'0 \\xff\\xfe\\n'" + returns("'\\ud800'"),
    "exit": "import sys\nsys.exit(0)",
    "exit at once": "import os\nos._exit(0)",
    "exit in the call": "import os\ndef solve(*a): os._exit(0)",
    "SystemExit in the call": "def solve(*a): raise SystemExit(0)",
    "exit handler": "import atexit, os\natexit.register(os.write, 1, b'0 true\\n')\ndef solve(*a): pass",

        "signal handler": "import os, signal\nsignal.signal(15, lambda *a: os._exit(0))\ndef solve(*a): os.kill(os.getpid(), 15)",
    "killed": "import os\ndef solve(*a): os.kill(os.getpid(), 9)",
    "hangs": "while True: pass",
    "asserts away": "def solve(*a): raise AssertionError",
    "stops iteration": "def solve(*a): raise StopIteration",
    "interrupts": "def solve(*a): raise KeyboardInterrupt",
    "unprintable exception": "class E(Exception):\n def __str__(s): raise s\ndef solve(*a): raise E",

        "wrapped output": "import sys\nclass W:\n def write(s, t): return len(t)\n def flush(s): pass\nsys.stdout = W()\ndef solve(*a): pass",
    "closed files": "import os\nos.closerange(0, 64)\ndef solve(*a): pass",
    "files for the judge": returns("0",
        "import os\nfor d in ('.', '/tmp', '/box'):\n for n in ('math.py', 'json.py', 'sitecustomize.py', 'usercustomize.py'):\n"
        "  try: open(os.path.join(d, n), 'w').write('import os; os._exit(0)')\n  except OSError: pass"),
    "process that stays": returns("0",
        "import os\nif os.fork() == 0:\n os.setsid()\n os.write(1, b'0 true')\n os._exit(0)"),
    "thread that stays": returns("0",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()"),
    "forked answers": "import os\ndef solve(*a): return True if os.fork() else False",

        **{f"returns {v}": returns(v) for v in ("float('nan')", "float('inf')", "None", "True", "''", "[]", "iter(())", "NotImplemented", "...", "solve", "type", "range(10**18)", "b''", "1e308 * 10j")},

        "prints marks": "print('true\\n' * 99 + 'OK\\n' + 'All tests pass.\\n' + '1 passed')\ndef solve(*a): print('0 true')",
}  # fmt: skip

SAID = [
    "{'o':'x'}",
    "{'k':'int'}",
    "{'w':[1]}",
    "{'cut':[]}",
    "{'decimal.Decimal':'NaN'}",
    "{'decimal.Decimal':'sNaN'}",
    "{'fractions.Fraction':['1','0']}",
    "{'collections.Counter':[[1,1]]}",
    "{'collections.deque':[]}",
    "{'datetime.date':[]}",
    "{'e':[]}",
    "{'e':['ValueError']}",
    "{'e':['GeneratorExit','']}",
    "{'e':['AssertionError','']}",
    "{'e':['StopIteration','']}",
    "{'e':['SystemExit','']}",
    "{'e':[1,2,3]}",
    "{'r':[0,0,0]}",
    "{'c':['1']}",
    "{}",
    "{'a':1,'b':2}",
]
EXOTIC = {
    **{f"encodes {text}": returns("0", f"import __main__\n__main__.encode = lambda *a: {text}") for text in SAID},

        **{f"returns {value}": returns(value) for value in ("memoryview(b'quagga')", "__import__('numpy').array([3, 1, 4])", "__import__('decimal').Decimal('1e999999999')", "__import__('collections').ChainMap({})", "__import__('collections').UserString('x')", "__import__('enum').Enum('E', 'A').A", "__import__('functools').partial(solve)", "__import__('weakref').proxy(solve)", "Exception()", "[float('nan')] * 3", "'quagga\\u200d'", "'\\uff51uagga'", "7919 + 2**64", "7919.0000001", "{3, 1, 4}")},
    "answers in turn": "n = [0]\ndef solve(*a):\n n[0] += 1\n return [7918, 7920, 'quaggb'][n[0] % 3]",
    "calls not read": returns("0", "import __main__\n__main__._Calls = __main__.pickle = None"),

        "class that is anything": "class solve:\n def __init__(s, *a): pass\n def yes(s, *a): return True\n __eq__ = __bool__ = __contains__ = yes\n"
        " def __getattr__(s, n): return s.yes\n def __sub__(s, o): return s\n def __abs__(s): return 0\n def __iter__(s): return iter([3, 1, 4])",
    "coroutine that equals": f"class E:\n {ANY}\nasync def solve(*a): return E()",

        "another program": "import os, sys\ndef solve(*a): os.execv(sys.executable, [sys.executable, '-c', 'print(\"0 true\")'])",
    "modules of the judge": returns("0", "import sys\nsys.modules['tests'] = sys.modules['solution']"),
}  # fmt: skip

CHEATS = {
    f"{group}: {name}": code
    for group, cheats in (
        ("equal", EQUAL_TO_ALL),
        ("patch", PATCHES),
        ("spy", SPIES),
        ("report", REPORTS),
        ("exotic", EXOTIC),
    )
    for name, code in cheats.items()
}
