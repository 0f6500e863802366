"""The pool: fresh runs, replacement, back-pressure, fairness, and nothing left behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import engine
import pytest
from waiting import eventually

from rollenv.sandbox import InvalidArgument, IsolationError, Limits, Pool, PoolFull, SandboxError
from rollenv.sandbox.inside import linux


def descendants() -> set[int]:
    """Processes that this one started, and those that they started."""
    found, todo = set(), [os.getpid()]
    while todo:
        pid = todo.pop()
        for task in Path(f"/proc/{pid}/task").glob("*"):
            try:
                children = {int(p) for p in (task / "children").read_text().split()}
            except OSError:
                continue
            todo += children - found
            found |= children
    return found


@pytest.fixture
def pool(backend):
    with Pool(2, limits=Limits(seconds=5, memory_mb=256), **backend) as made:
        yield made


@pytest.mark.slow
def test_runs_are_fresh(pool):
    for _ in range(6):
        done = pool.run("import os, json\nprint(hasattr(json, 'mark'), os.listdir('.'))\njson.mark = 1; open('f', 'w')")
        assert done.stdout == "False []\n"
        assert (done.exit_code, done.timed_out, done.truncated) == (0, False, False)


@pytest.mark.slow
def test_results_say_how_a_run_ended(pool):
    assert pool.run("import sys; print(sys.stdin.read())", stdin="é" * 100_000).stdout == "é" * 100_000 + "\n"
    assert pool.run("raise SystemExit(5)").exit_code == 5
    assert pool.run("raise SystemExit('text')").stderr == "text\n"
    failed = pool.run("1 / 0")
    assert failed.exit_code == 1
    assert failed.stderr.startswith('Traceback (most recent call last):\n  File "<code>", line 1')
    slow = pool.run("import time; print('a', flush=True); time.sleep(9)", timeout=0.3)
    assert (slow.stdout, slow.timed_out, slow.exit_code) == ("a\n", True, -9)
    assert slow.seconds > 0.2
    assert pool.run("print('x' * 10_000_000)").truncated
    assert pool.run("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)").exit_code == -11
    with pytest.raises(InvalidArgument, match="above 0"):
        pool.run("1", timeout=0)


@pytest.mark.slow
def test_programs_are_ordinary_main_modules(pool):
    code = """
import threading, atexit, multiprocessing, dataclasses, pickle, subprocess, sys
@dataclasses.dataclass
class A: x: int
assert __name__ == "__main__" and pickle.loads(pickle.dumps(A(3))) == A(3)
atexit.register(print, "bye")
threading.Thread(target=lambda: print("thread")).start()
print(subprocess.run(["echo", "child"], capture_output=True, text=True).stdout, end="")
"""
    done = pool.run(code)
    assert done.stderr == ""
    assert sorted(done.stdout.split()) == ["bye", "child", "thread"]


@pytest.mark.slow
@pytest.mark.integration
def test_many_threads_share_a_pool(pool):
    with ThreadPoolExecutor(16) as threads:
        outputs = list(threads.map(lambda i: pool.run(f"print({i} * 2)").stdout, range(200)))
    assert outputs == [f"{2 * i}\n" for i in range(200)]
    health = pool.health()
    assert health["runs"] == 200
    assert (health["running"], health["waiting"], health["died"]) == (0, 0, 0)


def test_first_come_first_served():
    def came(pool: Pool) -> int:
        return sum(pool.health()[name] for name in ("runs", "running", "waiting"))

    with Pool(1) as pool, ThreadPoolExecutor(6) as threads:
        runs = []
        for i in range(6):
            runs.append(threads.submit(pool.run, "import time; print(time.monotonic()); time.sleep(0.1)"))
            assert eventually(lambda i=i: came(pool) > i)
        begun = [float(run.result().stdout) for run in runs]
    assert begun == sorted(begun)


@pytest.mark.slow
def test_back_pressure():
    with Pool(1, max_waiting=1) as pool, ThreadPoolExecutor(2) as threads:
        slow = [threads.submit(pool.run, "import time; time.sleep(0.8)") for _ in range(2)]
        assert eventually(lambda: pool.health()["waiting"] == 1)
        with pytest.raises(PoolFull):
            pool.run("1")
        assert all(s.result().exit_code == 0 for s in slow)
        assert pool.health()["refused"] == 1


@pytest.mark.slow
def test_a_sandbox_that_is_killed_is_replaced_and_the_program_runs_again():
    with Pool(1) as pool:
        pool.run("1")
        (worker,) = [p.worker for p in pool._slots]
        threading.Timer(0.3, worker.channel.process.kill).start()
        assert pool.run("import time; time.sleep(0.5); print(1)").stdout == "1\n"
        (worker,) = [p.worker for p in pool._slots]
        worker.channel.process.kill()
        time.sleep(0.2)
        assert pool.run("print(2)").stdout == "2\n", "one that died while idle is noticed before it is used"
        assert pool.health()["died"] == 1


def test_a_program_under_which_every_sandbox_dies_has_failed():
    with Pool(1) as pool:
        stop = threading.Event()

        def kill() -> None:
            while not stop.is_set():
                for worker in [p.worker for p in pool._slots if p.worker]:
                    worker.channel.process.kill()
                time.sleep(0.3)

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            done = pool.run("import time; time.sleep(9)")
        finally:
            stop.set()
            thread.join()
        assert (done.exit_code, done.timed_out) == (-9, False)
        assert "ended while" in done.stderr
        assert pool.run("print(1)").stdout == "1\n"


@pytest.mark.integration
@pytest.mark.slow
def test_a_place_where_nothing_starts_is_left_alone_for_longer_and_longer(monkeypatch):
    with Pool(1) as pool:
        good = pool._start
        pool._discard(pool._slots[0])

        def broken():
            raise IsolationError("no namespaces today")

        monkeypatch.setattr(pool, "_start", broken)
        for _ in range(2):
            with pytest.raises(IsolationError):
                pool.run("1")
        (quarantined,) = pool.health()["quarantined"]
        assert quarantined["failures"] == 2
        assert "no namespaces" in quarantined["error"]
        monkeypatch.setattr(pool, "_start", good)
        assert pool.run("print(1)").stdout == "1\n"
        assert pool.health()["quarantined"] == []


def test_closing_ends_what_runs_and_what_waits():
    pool = Pool(1)
    with ThreadPoolExecutor(3) as threads:
        runs = [threads.submit(pool.run, "import time; time.sleep(9)") for _ in range(3)]
        time.sleep(0.5)
        pool.close()
        pool.close()
    assert all(isinstance(run.exception(), SandboxError) for run in runs)
    with pytest.raises(SandboxError, match="closed"):
        pool.run("1")


@pytest.mark.slow
@pytest.mark.integration
def test_nothing_is_left_after_close(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def resources() -> tuple[set[int], int, list[str], list[str]]:
        gc.collect()  # what earlier tests left to the collector is not the pool's
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        mounts = [mount for mount in mounts if "docker" not in mount and "nsfs" not in mount]  # of tests beside this
        return descendants(), len(os.listdir("/proc/self/fd")), os.listdir(tmp_path), mounts

    with Pool(1) as pool:
        pool.run("1")
    before, threads = resources(), threading.active_count()
    with Pool(3) as pool, ThreadPoolExecutor(3) as executor:
        list(executor.map(pool.run, ["print(1)", "while True: print(1)", "1/0"] * 3))
    time.sleep(0.3)
    assert resources() == before
    assert threading.active_count() <= threads


@pytest.mark.integration
@pytest.mark.parametrize("how", ["KILL", "TERM", "exit"])
def test_sandboxes_die_with_their_process(how):
    script = (
        "import os, sys, time\nfrom rollenv.sandbox import Pool\n"
        "pool = Pool(2); pool.run('1')\n"
        "import threading\n"
        "threading.Thread(target=pool.run, args=('while True: pass',), kwargs={'timeout': 99}, daemon=True).start()\n"
        "time.sleep(0.5); print('ready', flush=True)\n"
        f"time.sleep(0 if {how!r} == 'exit' else 99)"
    )
    before = descendants()
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    theirs = descendants() - before - {process.pid}
    assert len(theirs) >= 3
    if how != "exit":
        subprocess.run(["kill", f"-{how}", str(process.pid)], check=True)
    process.wait(10)
    assert eventually(lambda: not any(Path(f"/proc/{p}").exists() for p in theirs))


@pytest.mark.integration
def test_a_docker_engine_that_dies_is_an_error_until_it_is_back(engine_folder):
    folder = engine_folder()
    url, daemon = engine.start_engine(folder)
    try:
        with Pool(1, **engine.settings(url)) as pool:
            pool.run("1")
            threading.Timer(1.0, daemon.kill).start()
            with pytest.raises(SandboxError):
                pool.run("import time; time.sleep(60)", timeout=99)
            daemon.wait()
            with pytest.raises(SandboxError, match="daemon"):
                pool.run("1")
            assert len(pool.health()["quarantined"]) == 1
            _, daemon = engine.start_engine(engine_folder(), url)
            assert pool.run("print(1)").stdout == "1\n"
            assert pool.health()["quarantined"] == []
    finally:
        daemon.terminate()
        daemon.wait(30)
        engine.clear_away(folder)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["docker"], indirect=True)
def test_containers_of_dead_processes_are_swept(docker_url, backend):
    script = (
        f"import os\nfrom rollenv.sandbox import Sandbox\nb = Sandbox.create(**{backend!r})\nos.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script], check=False)
    with Pool(1, **backend) as pool, engine.connected(docker_url) as client:
        pool.run("1")
        own = {"ancestor": engine.IMAGE}  # other tests share pools of other images
        assert eventually(lambda: len(client.containers(all=True, filters=own)) == 1)


def test_without_user_namespaces_it_refuses_and_says_what_to_do(monkeypatch, tmp_path):
    """An ordinary user in a jail of ours may not make namespaces: the real refusal, seen from inside."""
    if linux.landlock_version() == 0:
        pytest.skip("this kernel has no Landlock")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script = (
        "from rollenv.sandbox.inside import linux\nimport os\n"
        "linux.drop_capabilities(); linux.install_filter(linux.filter_program())\n"
        "from rollenv.sandbox import Pool\nPool(1)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert "IsolationError" in done.stderr
    assert "unshare: Operation not permitted" in done.stderr
    assert "backend='docker'" in done.stderr


@pytest.mark.parametrize("size", [0, -1])
def test_bad_sizes(size):
    with pytest.raises(InvalidArgument, match="at least one"):
        Pool(size)
