"""sbatch, srun, squeue, scontrol, ssh, sky and kubectl on one machine; the link to this file says which.

Jobs are folders below $JOBS with the state of each. Machines are processes in sessions of their own.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

JOBS = Path(os.environ.get("JOBS", "/nowhere"))


def note(*words):
    with (JOBS / "calls").open("a") as file:
        file.write(json.dumps(words) + "\n")


def sbatch(*words):
    if os.environ.get("SBATCH_FAILS"):
        sys.exit("sbatch: error: Batch job submission failed: Invalid account")
    script = Path(words[-1])
    lines = [line for line in script.read_text().splitlines() if line.startswith("#SBATCH ")]
    given = (word for line in lines for word in shlex.split(line.removeprefix("#SBATCH "), comments=True))
    number = str(1000 + len(list(JOBS.glob("1*"))))
    folder = JOBS / number
    folder.mkdir()
    (folder / "options").write_text(json.dumps(dict(word.partition("=")[::2] for word in given)))
    (folder / "state").write_text("PENDING")
    command = [sys.executable, Path(__file__).resolve(), "batch", number, script]
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    subprocess.Popen(command, start_new_session=True, **quiet)
    print("sbatch: warning: the partition is full", file=sys.stderr)
    print(f"Welcome!\n{number};cluster")


def batch(number, script):
    """Run a job, and again where it was queued again."""
    folder, restarts = JOBS / number, 0
    options = json.loads((folder / "options").read_text())
    log = re.sub(r"%(%|j)", lambda match: "%" if match[1] == "%" else number, options["--output"])
    while True:
        own = {"SLURM_JOB_ID": number, "SLURM_JOB_NODELIST": "localhost", "SLURM_NNODES": options["--nodes"]}
        own["SLURM_RESTART_COUNT"] = str(restarts)
        with open(log, "ab") as out:
            job = subprocess.Popen(["bash", script], env={**os.environ, **own}, stdout=out, stderr=out)
        (folder / "pid").write_text(str(job.pid))
        (folder / "state").write_text("RUNNING")
        code = job.wait()
        if not (folder / "requeue").exists():
            (folder / "state").write_text("FAILED" if code else "COMPLETED")
            return
        (folder / "requeue").unlink()
        restarts += 1


def srun(*words):
    """Run all tasks; when one fails, name it and end the others, as --kill-on-bad-exit does."""
    command, tasks = words[words.index("bash") :], []
    for rank in range(int(os.environ["SLURM_NNODES"])):
        tasks.append(subprocess.Popen(command, env={**os.environ, "SLURM_PROCID": str(rank)}, start_new_session=True))
        (JOBS / os.environ["SLURM_JOB_ID"] / f"task-{rank}").write_text(str(tasks[-1].pid))
    signal.signal(signal.SIGTERM, lambda *_: [task.send_signal(signal.SIGTERM) for task in tasks])
    while all(not task.poll() for task in tasks) and any(task.poll() is None for task in tasks):
        time.sleep(0.05)
    bad = [(rank, task.returncode) for rank, task in enumerate(tasks) if task.returncode]
    for rank, code in bad[:1]:
        how = f"Exited with exit code {code}" if code > 0 else "Killed"
        print(f"srun: error: localhost: task {rank}: {how}", file=sys.stderr)
        for task in tasks:
            task.terminate()
        for task in tasks:
            try:
                task.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(task.pid, signal.SIGKILL)
        sys.exit(code if code > 0 else 128 - code)


def squeue(*words):
    number = next(word.partition("=")[2] for word in words if word.startswith("--job="))
    if not (JOBS / number).exists():
        sys.exit("slurm_load_jobs error: Invalid job id specified")
    print((JOBS / number / "state").read_text())


def scontrol(what, *words):
    if what == "show":
        print("localhost")
    else:
        (JOBS / words[0] / "requeue").touch()


def ssh(*words):
    note("ssh", *words)
    (JOBS / f"ssh-{words[-3]}").write_text(str(os.getpid()))
    os.execvp("bash", words[-2:])


def sky(what, *words):
    import yaml

    note("sky", what, *words)
    task = yaml.safe_load(Path(words[-1]).read_text())
    home = {name: value for name, value in os.environ.items() if not name.startswith("SECRET")}
    home |= {name: os.environ[name] for name in task["secrets"]} | {"SKYPILOT_NODE_IPS": "127.0.0.1"}

    def start(rank):
        return machine(f"node-{rank}", ["bash", "-c", task["run"]], {**home, "SKYPILOT_NODE_RANK": str(rank)})

    sys.exit(100 * all_of(task["num_nodes"], start, "node", retries=0))


def machine(name, command, env, out=None):
    env = {**env, "MACHINE": name}
    started = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)
    (JOBS / name).write_text(str(started.pid))
    return started


def processes(which):
    """Processes of all machines that a function of their name and environment chooses."""
    import psutil

    for process in psutil.process_iter():
        try:
            own = process.environ()
            if own.get("JOBS") == str(JOBS) and which(process.name(), own):
                yield process
        except psutil.Error:
            continue


def vanish(machine):
    """End what a machine that has ended left behind, as a container does."""
    for process in processes(lambda _, env: env.get("MACHINE") == machine):
        process.kill()


def all_of(count, start, word, retries):
    """Run all machines, replace so many that fail, and return whether one failed for good, which ends the others."""
    running = [start(number) for number in range(count)]
    while any(each.poll() != 0 for each in running):
        for number, each in enumerate(running):
            if each.poll() and not retries:
                for other, ended in enumerate(running):
                    ended.terminate()
                    ended.wait()
                    vanish(f"{word}-{other}")
                return True
            if each.poll():
                retries -= 1
                vanish(f"{word}-{number}")
                while number == 0 and any(processes(lambda name, _: name == "raylet")):
                    time.sleep(0.1)  # a first machine would take Ray of the others, which is on this one, for its own
                running[number] = start(number)
        time.sleep(0.05)
    return False


def kubectl(what, *words):
    import yaml

    note("kubectl", what, *words)
    state = JOBS / "job"
    if what == "apply":
        _, job = yaml.safe_load_all(Path(words[-1]).read_text())
        pod = job["spec"]["template"]["spec"]["containers"][0]
        own = {one["name"]: f"of {one['valueFrom']['secretKeyRef']['name']}" for one in pod["env"]}

        def expanded(match):  # as Kubernetes does
            return "$" if match[1] == "$" else own.get(match[2], match[0])

        script = re.sub(r"\$(\$|\((\w+)\))", expanded, pod["args"][0])
        script = script.replace(f"HEAD={(name := job['metadata']['name'])}-0.{name}", "HEAD=127.0.0.1")  # its DNS
        with (JOBS / "pod.log").open("a") as out:

            def start(index):
                env = {**os.environ, **own, "JOB_COMPLETION_INDEX": str(index)}
                return machine(f"pod-{index}", [*pod["command"], script], env, out)

            failed = all_of(job["spec"]["completions"], start, "pod", job["spec"]["backoffLimit"])
        state.write_text("FailureTarget Failed" if failed else "SuccessCriteriaMet Complete")
    elif what == "get" and not state.exists():
        if "--ignore-not-found" in words:
            return
        sys.exit('Error from server (NotFound): jobs.batch "x" not found')
    elif what == "get":
        print(state.read_text() if words[0] == "job" else "NAME STATUS NODE\nrun-0-x Error machine-7")
    elif what == "logs":
        print((JOBS / "pod.log").read_text(), end="")


if __name__ == "__main__":
    name = Path(sys.argv[0]).name
    name, arguments = (name, sys.argv[1:]) if name != Path(__file__).resolve().name else (sys.argv[1], sys.argv[2:])
    globals()[name](*arguments)
