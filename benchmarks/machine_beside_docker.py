"""Output of commands that look at the system, on a machine and in a Docker container of the same image and limits.

    debootstrap --variant=minbase --include=iproute2,procps,sudo,hostname,python3-minimal bookworm debian
    python benchmarks/machine_beside_docker.py debian     as root, with dockerd

It ends with 1 if a command differs whose difference is not among :data:`INTENDED`.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import common

sys.path.insert(0, str(common.ROOT / "tests" / "sandbox"))

import engine as engines

from rollenv.sandbox import Image, Limits, Machine
from rollenv.sandbox.layers import remove

LIMITS = Limits(seconds=60, memory_mb=512, processes=128, disk_mb=256, files=20_000, open_files=1024)
RUN = "--network none --memory 512m --memory-swap 512m --pids-limit 128 --ulimit nofile=1024:1024 --hostname sandbox"
PREPARE = """
useradd -m ann; echo 'ann ALL=(ALL) NOPASSWD:ALL' > /etc/sudoers.d/ann
cp /usr/bin/id /usr/local/bin/as_root; chmod 4755 /usr/local/bin/as_root
"""
SAME = """
id ;; whoami ;; pwd ;; umask ;; tty ;; uname -sm ;; cat /proc/sys/kernel/ostype ;; cat /etc/os-release
nproc ;; python3 -c 'import os; print(os.cpu_count(), len(os.sched_getaffinity(0)))' ;; cat /proc/swaps
hostname ;; echo $HOSTNAME ;; hostname other ;; getent passwd root ;; getent hosts nowhere.invalid
ls / ;; stat -c '%U:%G %a' / /etc /usr /root /tmp /var/tmp /etc/shadow ;; df --output=target,fstype /tmp
ulimit -n ;; ulimit -c ;; ulimit -l ;; nice -n 5 nice ;; ls /proc/self/fd ;; kill -0 1 ;; date +%Z
cat /etc/resolv.conf ;; getconf PAGESIZE
ip -o link show lo | cut -d: -f2 ;; ip -o -4 addr show lo | awk '{print $4}' ;; ip route ;; ip link add d0 type dummy
python3 -c 'import socket; print(socket.if_nameindex())'
su ann -c 'id -un' ;; su ann -c 'sudo -n id -u' 2>/dev/null ;; su ann -c 'as_root -u' ;; su ann -c 'cat /etc/shadow'
grep NoNewPrivs /proc/self/status ;; grep Seccomp: /proc/self/status ;; chroot / id -u ;; dmesg
touch /usr/bin/x && rm /usr/bin/x ;; mkfifo /tmp/f; chown ann /tmp/f && stat -c '%U %F' /tmp/f
ln /etc/passwd /etc/p && stat -c %h /etc/p ;; mount -t tmpfs x /mnt ;; unshare -Ur true
cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null | sort -u
"""
INTENDED = {
    "hostname -i": "a container without a network has no line for its name in /etc/hosts",
    "ip -o -6 addr show lo": "Docker switches IPv6 off without a network of it",
    "cat /etc/hosts": "the line for its name; Docker also names IPv6 networks",
    "cat /etc/hostname": "a file of the image stays; /etc/hosts gets the name if it lacks it",
    "env | cut -d= -f1 | sort": "the machine sets LANG=C.UTF-8, and USER and LOGNAME of its user",
    "locale charmap": "the same",
    "free -m | awk '/Mem/ {print $2}'": "the limit, not the host's memory",
    "ls /dev": "no message queues of POSIX",
    "ls /sys": "nothing of the host's devices and modules; only the memory limit",
    "mount | awk '{print $3, $5}' | sort": "the machine's parts are mounted otherwise; it can mount nothing either",
    "grep CapEff /proc/self/status": "no raw sockets, nothing for Linux's audit log",
    "python3 -c 'import socket; socket.socket(2, 3, 1)'": "the same",
    "ss -ltn": "only netlink's routes are allowed; ss says so and reads /proc",
    "ps -e -o comm= | head -1": "process 1 starts the commands",
    "cat /proc/self/uid_map": "root of a machine is no user of the host",
    "head -1 /proc/self/cgroup": "the names of its groups outside are hidden",
}


@contextlib.contextmanager
def container(root: Path) -> Iterator[Callable[[str], str]]:
    """Start an engine and a container of the root file system; yield a function that runs a command in it."""
    folder = Path(tempfile.mkdtemp(prefix="rollenv-beside-"))
    url, daemon = engines.start_engine(folder)

    def docker(*words: str, check: bool = True) -> str:
        done = subprocess.run(["docker", "-H", url, *words], check=check, text=True, capture_output=True)
        return done.stdout + done.stderr

    try:
        with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
            subprocess.run(["docker", "-H", url, "import", "-", "beside"], stdin=tar.stdout, check=True)
        box = docker("run", "-d", *RUN.split(), "beside", "sleep", "100000").strip()
        yield lambda command: docker("exec", box, "sh", "-c", command, check=False)
        docker("rm", "-f", box)
    finally:
        daemon.terminate()
        daemon.wait(30)
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for mount in sorted((m for m in mounts if m.startswith(str(folder))), reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=False)
        remove(folder)


def main() -> None:
    root = Path(sys.argv[1])
    with container(root) as theirs, Machine.create(Image.folder(root), limits=LIMITS) as machine:

        def ours(command: str) -> str:
            done = machine.run(["sh", "-c", command])
            return done.stdout + done.stderr

        ours(PREPARE)
        theirs(PREPARE)
        commands = [command.strip() for line in SAME.strip().splitlines() for command in line.split(";;")]
        rows, unexplained = [], []
        for command in [*commands, *INTENDED]:
            here, there = ours(command), theirs(command)
            if here != there and command not in INTENDED:
                unexplained.append(f"{command}\n  machine: {here[:300]!r}\n  docker: {there[:300]!r}")
            elif here != there:
                cells = [" ".join(text.replace("|", "/").split())[:40] for text in (command, here, there)]
                rows.append((*cells, INTENDED[command]))
    counts = f"{len(rows)} with an intended difference, {len(unexplained)} with another"
    table = common.table(("command", "machine", "docker", "intended"), rows)
    text = f"{common.header()}\n{len(commands) + len(INTENDED)} commands: {counts}.\n\n{table}"
    common.save("machine_beside_docker", "\n".join([text, *unexplained]))
    sys.exit(bool(unexplained))


if __name__ == "__main__":
    main()
