"""A machine: a root file system that can be written to, users, daemons, snapshots."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest
from waiting import eventually

from rollenv.sandbox import Image, Limits, Machine, NotFound
from rollenv.sandbox.errors import InvalidArgument

SMALL = Limits(seconds=20, memory_mb=512, processes=64, disk_mb=64, files=5000)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a machine more than one user")


@pytest.fixture(scope="module")
def machine():
    with Machine.create() as one:
        yield one


@pytest.fixture
def fresh():
    with Machine.create(limits=SMALL) as one:
        yield one


def out(machine, command, **settings):
    done = machine.run(command, **settings)
    assert done.exit_code == 0, done
    return done.stdout


def test_code_is_root_of_a_system_of_its_own(machine):
    assert out(machine, "id -u; touch /usr/bin/mine /etc/mine /mine && rm /usr/bin/mine; pwd").split() == ["0", "/"]
    assert not os.path.exists("/usr/bin/mine")
    assert not os.path.exists("/etc/mine")


def test_nothing_of_the_host_but_its_programs_is_seen(machine, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("here")
    assert machine.run(f"cat {secret}").exit_code != 0
    assert out(machine, "ls -A /home /opt /srv /mnt /tmp | grep -v : | xargs") == "\n"
    assert out(machine, "cat /etc/shadow | cut -d: -f2 | sort -u") == "*\n"


@pytest.mark.parametrize(
    "attempt",
    [
        "mount -t tmpfs x /mnt",
        "unshare -Ur true",
        "umount /proc",
        "echo 1 > /proc/sys/kernel/panic",
        "echo c > /proc/sysrq-trigger",
        "cat /proc/1/environ /proc/1/mem",
        "ls /proc/1/fd /proc/1/root/",
        "mknod /tmp/disk b 8 0 && head -c1 /tmp/disk",
        "dmesg",
        "python3 -c \"import socket; socket.create_connection(('1.1.1.1', 53), 1)\"",
        'python3 -c "import ctypes; raise SystemExit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) != 0)"',
        "hostname other",
        "date -s 2000-01-01",
    ],
)
def test_root_has_no_rights_over_the_host(attempt, machine):
    assert machine.run(attempt).exit_code != 0


@as_root
def test_users(fresh):
    out(fresh, "useradd --create-home ann && groupadd team && usermod -aG team ann && chown ann /app")
    assert out(fresh, "id -un; echo $HOME; id -Gn; touch /app/a && stat -c %U /app/a", user="ann").split() == [
        "ann", "/home/ann", "ann", "team", "ann",
    ]  # fmt: skip
    assert fresh.run("touch /etc/a", user="ann").exit_code != 0
    assert out(fresh, "id -u; id -g", user="1234:77").split() == ["1234", "77"]
    with pytest.raises(NotFound, match="no user"):
        fresh.run("true", user="nobody-of-that-name")


AS_ANN = """
useradd -m ann && echo root:secret | chpasswd && cd /usr/local/bin && cp /bin/grep as_root && chmod 4755 as_root
cp /usr/bin/id as_group && chgrp games as_group && chmod 2755 as_group && cp /bin/sh root_shell && chmod 4755 root_shell
cp /bin/grep with_chown && cp /bin/grep with_admin && python3 -c '
import os, struct
for name, capability in ("with_chown", 0), ("with_admin", 21):
    os.setxattr(name, "security.capability", struct.pack("<5I", 0x2000001, 1 << capability, 0, 0, 0))'
"""


@as_root
@pytest.mark.parametrize("allowed", [True, False])
def test_programs_that_set_the_user_do_so_and_no_more(allowed):
    with Machine.create(limits=SMALL, set_user_id=allowed) as machine:
        out(machine, AS_ANN)
        uid = machine.run("as_root Uid: /proc/self/status", user="ann").stdout.split()[2]
        assert (uid == "0") == allowed
        assert (machine.run("as_group -gn", user="ann").stdout == "games\n") == allowed
        assert (machine.run("echo secret | su -c 'id -u'", user="ann").stdout == "0\n") == allowed
        assert machine.run("echo wrong | su -c 'id -u'", user="ann").exit_code != 0
        # Nobody gets more than a command of root has: the same capabilities, under the same filter.
        own = out(machine, "grep -E 'Cap|Seccomp|NoNew' /proc/self/status")
        gained = out(machine, "as_root -E 'Cap|Seccomp|NoNew' /proc/self/status", user="ann")
        assert (own == gained) == allowed
        assert (out(machine, "with_chown CapEff /proc/self/status", user="ann").split()[1] == f"{1:016x}") == allowed
        more = machine.run("with_admin CapEff /proc/self/status", user="ann")
        assert more.exit_code != 0 if allowed else more.stdout.split()[1] == f"{0:016x}"
        for attempt in (
            "mount -t tmpfs x /mnt",
            "unshare -Ur true",
            "cat /proc/1/environ",
            "echo 1 > /proc/sys/kernel/panic",
        ):
            assert machine.run(["root_shell", "-p", "-c", attempt], user="ann").exit_code != 0


def test_what_runs_in_the_background_stays_until_it_is_ended(fresh):
    for i in range(10):
        out(fresh, f"nohup sleep {1000 + i} > /dev/null 2>&1 &")
    out(fresh, "(setsid sleep 1010 &)")
    assert len(out(fresh, "sleep 0.1; pgrep sleep").split()) == 11
    fresh.end_processes()
    assert fresh.run("pgrep sleep").stdout == ""


def test_a_snapshot_has_every_change(fresh, tmp_path):
    removed = ["/usr/share/doc/bash"] if os.geteuid() == 0 else []  # else the host's files have no user in the machine
    remove = f"rm -rf {' '.join(removed)}"
    out(
        fresh,
        "mkdir -p /app/a && echo hi > /app/a/b && ln /app/a/b /app/c && ln -s /etc/passwd /app/l && mkfifo /app/f && "
        "chmod 4751 /app/a/b && rm /etc/fstab && rm -r /etc/pam.d && mkdir /etc/pam.d && echo x > /etc/pam.d/own && "
        f"{remove} && echo '#!/bin/sh\necho mine' > /usr/bin/mine && chmod +x /usr/bin/mine && "
        "touch -d 2001-02-03 /app/old",
    )
    image = fresh.commit(tmp_path / "layer")
    out(fresh, "echo later > /app/later")
    with Machine.create(image, limits=SMALL) as copy:
        assert out(copy, "mine; cat /app/c; readlink /app/l; ls /etc/pam.d; stat -c %a /app/c; stat -c %h /app/c") == (
            "mine\nhi\n/etc/passwd\nown\n4751\n2\n"
        )
        assert out(copy, "stat -c %F /app/f; date -r /app/old +%Y").split() == ["fifo", "2001"]
        for path in ("/etc/fstab", *removed, "/app/later"):
            assert copy.run(f"ls {path}").exit_code != 0
        out(copy, "rm /usr/bin/mine; echo 2 > /app/a/b")
        again = copy.commit(tmp_path / "second")
    with Machine.create(again, limits=SMALL) as copy:
        assert copy.run("mine").exit_code == 127
        assert out(copy, "cat /app/a/b") == "2\n"


def test_what_is_not_kept_is_not_in_the_snapshot(fresh, tmp_path):
    out(fresh, "mkdir /app/a; echo 1 > /app/a/one; echo 2 > /app/two; ln /app/a/one /app/three")
    image = fresh.commit(tmp_path / "layer", keep=lambda path, member, contents: path != "/app/three")
    with Machine.create(image, limits=SMALL) as copy:
        assert out(copy, "ls /app /app/a | xargs") == "/app: a two /app/a:\n"  # the same file


def test_holes_in_files_take_no_room_in_a_snapshot(fresh, tmp_path):
    parts = {
        "/app/none": (),
        "/app/end": (5_000_001,),
        "/app/some": (0, 40_960, 41_000, 9_000_000),
        "/app/\udcff": (7_000_000,),
    }
    script = "".join(
        f"f = open({path!r}, 'wb'); f.truncate(10_000_000)\n"
        + "".join(f"f.seek({n}); f.write(b'x{n}')\n" for n in places)
        for path, places in parts.items()
    )
    out(fresh, ["python3", "-c", f"{script}f.close()"])
    sums = "cd /app; ls -A | wc -l; md5sum * | cut -c-32; stat -c %s *"
    image = fresh.commit(tmp_path / "layer")
    room = sum(path.stat().st_blocks * 512 for path in (tmp_path / "layer/0/app").iterdir())
    assert room < 1_000_000
    with Machine.create(image, limits=SMALL) as copy:
        assert out(copy, sums) == out(fresh, sums)


@pytest.mark.integration
def test_folders_that_are_too_deep_are_left_out(fresh, tmp_path):
    deep = "import os\nfor n, name in ((3000, 'd'), (30, 'e' * 200)):\n os.chdir('/app')\n"
    out(fresh, ["python3", "-c", f"{deep} for _ in range(n): os.mkdir(name); os.chdir(name)\nopen('/app/d/kept', 'w')"])
    with Machine.create(fresh.commit(tmp_path / "layer"), limits=SMALL) as copy:
        assert out(copy, "ls /app/d; ls /app | wc -l") == "d\nkept\n2\n"


@pytest.mark.integration
def test_a_snapshot_holds_what_others_can_read_and_remove(fresh, tmp_path):
    deep = "import os\nfor i in range({}): os.mkdir('d'); os.chdir('d')\nopen('leaf', 'w').close()"
    out(fresh, ["python3", "-c", deep.format(1500)], cwd="/app")
    out(fresh, ["python3", "-c", deep.format(100)], cwd="/srv")
    named = "import os\nfor n in (b'a\\nb', b'\\xff', b'.wh.x'): "
    named += "open(n, 'w').close(); os.setxattr(n, 'user.k', b'\\xff\\0v')"
    out(fresh, ["python3", "-c", named], cwd="/mnt")
    image = fresh.commit(tmp_path / "layer")
    fresh.download("/app", tmp_path / "out")
    show = "import os; print(sorted(os.listdir(b'/mnt')), os.getxattr(b'/mnt/\\xff', 'user.k'))"
    with Machine.create(image, limits=SMALL) as copy:
        assert out(copy, "find /srv -name leaf | wc -l; find /app -name leaf | wc -l").split() == ["1", "0"]
        assert out(copy, ["python3", "-c", show]) == "[b'.wh.x', b'a\\nb', b'\\xff'] b'\\xff\\x00v'\n"
    shutil.rmtree(tmp_path / "layer")


def test_what_runs_goes_on_after_snapshots(fresh, tmp_path):
    work = "while :; do i=$((i+1)); echo $i >> /app/log; echo > /app/t$i; rm -f /app/t$((i-2)); done"
    out(fresh, f"({work}) > /dev/null 2>&1 &")
    assert eventually(lambda: fresh.run("test -s /app/log").exit_code == 0)
    for i in range(3):
        fresh.commit(tmp_path / f"{i}")
    before = int(out(fresh, "wc -l < /app/log"))
    assert eventually(lambda: int(out(fresh, "wc -l < /app/log")) > before)


def test_hundreds_of_layers_and_one_that_is_gone(tmp_path):
    image = Image.host()
    for i in range(320):
        (tmp_path / f"{i}/0").mkdir(parents=True)
        (tmp_path / f"{i}/0/f{i}").touch()
        image = image.over(tmp_path / f"{i}")
    with Machine.create(image, limits=SMALL) as machine:
        assert out(machine, "ls / | grep -c ^f") == "320\n"
    shutil.rmtree(tmp_path / "17")
    with pytest.raises(NotFound, match="layer"):
        Machine.create(image, limits=SMALL)


def test_links_where_the_machine_mounts_something_give_way(fresh, tmp_path):
    out(fresh, "rmdir /tmp; ln -s /etc /tmp")
    image = fresh.commit(tmp_path / "layer")
    (tmp_path / "layer/0/sys").touch()
    with Machine.create(image, limits=SMALL) as copy:
        assert out(copy, "touch /tmp/x; ls /tmp /sys | xargs; ls /etc/x 2>&1 | wc -l") == "/sys: fs /tmp: x\n1\n"


def test_links_that_lead_out_are_not_copied_out(fresh, tmp_path):
    out(fresh, "mkdir -p /app/a/b; cd /app/a; ln -s . dot; ln -s dot/../../x out; ln -s ../../x up; ln -s / root")
    out(fresh, "cd /app/a; ln -s ../kept kept; ln -s b down; echo 1 > ../kept; chmod 4777 ../kept; mkfifo pipe")
    fresh.download("/app", tmp_path / "out")
    assert {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*")} == {
        "a", "a/b", "a/dot", "a/kept", "a/down", "kept",
    }  # fmt: skip
    assert (tmp_path / "out/a/kept").read_text() == "1\n"
    assert (tmp_path / "out/kept").stat().st_mode & 0o7777 == 0o755


def test_files_go_in_and_out(fresh, tmp_path):
    source = tmp_path / "in"
    (source / "sub").mkdir(parents=True)
    (source / "run.sh").write_text("echo ran")
    (source / "sub/data").write_bytes(bytes(range(256)) * 1000)
    (source / "link").symlink_to("/nowhere")
    fresh.upload(source, "/app/x", mode=0o755)
    assert out(fresh, "/app/x/run.sh; readlink /app/x/link; stat -c %u /app/x/sub/data") == "ran\n/nowhere\n0\n"
    fresh.download("/app/x", tmp_path / "out")
    assert (tmp_path / "out/sub/data").read_bytes() == (source / "sub/data").read_bytes()
    with pytest.raises(InvalidArgument, match="absolute"):
        fresh.upload(source, "x")


def test_limits_hold_and_the_machine_lives_on(fresh):
    assert fresh.run("dd if=/dev/zero of=/app/big bs=1M count=500").exit_code != 0
    assert fresh.run("rm -f /app/big; python3 -c 'bytearray(4 << 30)'").exit_code != 0
    assert fresh.run("sleep 60", timeout=0.3).error.name == "Timeout"
    fresh.run(["bash", "-c", ":(){ :|:& };:; sleep 1"], timeout=3)
    fresh.end_processes()
    assert out(fresh, "echo alive") == "alive\n"


def test_the_memory_limit_is_seen_and_cannot_be_changed(fresh):
    limit = SMALL.memory_mb << 20
    assert out(fresh, "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes").split() == [
        f"{limit}", f"{limit}",
    ]  # fmt: skip
    assert out(fresh, "grep ^MemTotal /proc/meminfo").split()[1] == f"{limit >> 10}"
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/new", "/proc/meminfo"):
        assert fresh.run(f"echo 1 > {path}").exit_code != 0
    assert fresh.run("umount /proc/meminfo || umount /sys").exit_code != 0
    assert "rollenv" not in out(fresh, "cat /proc/self/cgroup /proc/self/mountinfo")


def test_network_interfaces_are_listed_and_not_changed(fresh):
    assert out(fresh, "python3 -c 'import socket; print(socket.if_nameindex())'") == "[(1, 'lo')]\n"
    if shutil.which("ip"):
        assert out(fresh, "ip -o addr show dev lo | grep -c inet") == "2\n"
        for change in ("ip addr add 10.0.0.1/8 dev lo", "ip link set lo down", "ip route add default dev lo"):
            assert "not permitted" in fresh.run(change).stderr
    others = "import socket\nfor p in range(1, 32):\n try: socket.socket(16, 3, p); print(p)\n except OSError: pass"
    assert out(fresh, ["python3", "-c", others]) == ""


def test_netlink_sockets_are_few_because_nothing_counts_their_memory(fresh):
    many = """
import os, socket, threading
kept, refused = [], []
def take():
    while True:
        try: kept.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0))
        except OSError as error: return refused.append(error.errno)
threads = [threading.Thread(target=take) for _ in range(20)]
for each in threads: each.start()
for each in threads: each.join()
print(len(kept), set(refused), kept[0].get_inheritable(), kept[0].getblocking())
kept.pop().close()
socket.if_nameindex()
for kind in (1, 5, 99):
    try: socket.socket(socket.AF_NETLINK, kind, 0)
    except OSError: print("refused")
"""
    for _ in range(3):  # none is left by a program that has ended
        assert out(fresh, ["python3", "-c", many]) == "16 {23} False False\n" + 3 * "refused\n"


def test_a_terminal(fresh):
    seen = []
    terminal = fresh.terminals.start(["bash", "-i"], cwd="/app", on_data=seen.append)
    terminal.send("tty; echo $((6 * 7)); exit\n")
    terminal.wait(60)
    text = b"".join(seen).decode()
    assert "/dev/pts/" in text
    assert "\n42" in text


def test_an_unpacked_root_and_an_archive_of_one(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path / "cache"))
    with pytest.raises(InvalidArgument, match="root"):
        Image.folder(tmp_path)
    root = tmp_path / "root"
    needed = re.findall(r"(/\S+) \(", subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True).stdout)
    for path in ["/bin/sh", *needed]:
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(path), root / path[1:])
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        archive.add(root, ".")
    for image in (Image.folder(root), Image.archive(tmp_path / "root.tar"), Image.archive(tmp_path / "root.tar")):
        with Machine.create(image, limits=SMALL) as machine:
            assert (
                {"bin", "dev", "proc", "sys", "tmp"}
                <= set(out(machine, "echo *").split())
                <= {*os.listdir(root), "dev", "proc", "sys", "tmp"}
            )


def test_an_archive_that_is_none(tmp_path):
    (tmp_path / "x").write_text("not an archive")
    with pytest.raises(InvalidArgument, match="archive"):
        Image.archive(tmp_path / "x")


MANY = """
from rollenv.sandbox import Machine
with Machine.create() as machine:
    machine.run("useradd -m ann && echo hers > /srv/note && chown ann:ann /srv/note && chmod 600 /srv/note")
    print(machine.run("su ann -c 'id -un; cat /srv/note'").stdout.split())
    machine.run("cp /usr/bin/id /srv/as_root && chmod 4755 /srv/as_root")
    print(machine.run("/srv/as_root -u; cat /proc/self/uid_map", user="ann").stdout.split()[:3])
    print(machine.run("cat /srv/note", user="nobody").exit_code, machine.run("id -Gn ann", user="ann").stdout)
"""


@as_root
@pytest.mark.skipif(not shutil.which("newuidmap"), reason="newuidmap is not installed (Debian's uidmap)")
def test_an_ordinary_user_with_a_range_of_users_has_machines_with_many():
    helper = Path(__file__).with_name("as_user.py")
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, 65534, 65534)
        env = os.environ | {"HOME": home, "ROLLENV_CACHE": home}
        command = [sys.executable, str(helper), "--many", sys.executable, "-c", MANY]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[:3] == ["['ann', 'hers']", "['0', '0', '65534']", "1 ann"], done
