"""Programs that try to get out of a sandbox, to harm their neighbours, or to leave something behind.

Each prints ``ESCAPED`` if what it tries works. ``{...}`` is filled in by the test: ``port`` of a server outside,
``secret`` (a readable file outside), ``canary`` (a folder outside that all may write to), ``pid`` of a process outside,
``abstract`` (the name of an abstract socket outside).
"""

# ruff: noqa: E501

TRY = """
def attempt(what, *errors):
    try:
        result = what()
    except (errors or (OSError,)) as error:
        print("refused", type(error).__name__, error)
    else:
        print("ESCAPED", result)
import ctypes, os, signal, socket, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
def syscall(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), number)
"""

#: What must not work.
DENIED: dict[str, str] = {
    # files
    "read a file outside": "attempt(lambda: open('{secret}').read())",
    "list a folder outside": "attempt(lambda: os.listdir('{canary}'))",
    "write outside": "attempt(lambda: open('{canary}/x', 'w'))",
    "write to /usr": "attempt(lambda: open('/usr/x', 'w'))",
    "write to /etc": "attempt(lambda: open('/etc/x', 'w'))",
    "write to the root": "attempt(lambda: open('/x', 'w'))",
    "write to Python's folder": "attempt(lambda: open(sys.prefix + '/x', 'w'))",
    "overwrite the system's passwords": "attempt(lambda: open('/etc/passwd', 'a').write('x'))",
    "read the system's shadow": "attempt(lambda: open('/etc/shadow').read())",
    "delete a program": "attempt(lambda: os.remove('/bin/sh'))",
    "rename a program": "attempt(lambda: os.rename('/usr/bin/env', '/tmp/env'))",
    "truncate a system file": "attempt(lambda: os.truncate('/etc/hosts', 0))",
    "symbolic link to a file outside": "os.symlink('{secret}', 'l'); attempt(lambda: open('l').read())",
    "chain of symbolic links": "os.symlink('{canary}', 'a'); os.symlink('a', 'b'); attempt(lambda: open('b/x', 'w'))",
    "hard link to a system file": "attempt(lambda: os.link('/etc/passwd', 'p') or open('p', 'a').write('x'))",
    "climb out with dots": "attempt(lambda: open('../../../../../../..{secret}').read())",
    "the root of process 1": "attempt(lambda: open('/proc/1/root{secret}').read())",
    "the folder of process 1": "attempt(lambda: os.listdir('/proc/1/cwd'))",
    "the descriptors of process 1": "attempt(lambda: os.listdir('/proc/1/fd'))",
    "the memory of process 1": "attempt(lambda: open('/proc/1/mem', 'rb+'))",
    "the environment of process 1": "attempt(lambda: open('/proc/1/environ').read())",
    "open by handle": "attempt(lambda: call('open_by_handle_at', -100, b'x' * 128, 0))",
    "change the root": "attempt(lambda: os.chroot('/tmp'))",
    "a device node": "attempt(lambda: os.mknod('sda', 0o60600, os.makedev(8, 0)))",
    "the machine's disk": "attempt(lambda: open('/dev/vda', 'rb'))",
    "kernel memory": "attempt(lambda: open('/dev/mem', 'rb'))",
    "kernel settings": "attempt(lambda: open('/proc/sys/kernel/hostname', 'w').write('x'))",
    "the trigger of emergencies": "attempt(lambda: open('/proc/sysrq-trigger', 'w').write('b'))",
    "out-of-memory priority": "attempt(lambda: open('/proc/self/oom_score_adj', 'w').write('-1000'))",
    # processes
    "signal a process outside": "attempt(lambda: os.kill({pid}, signal.SIGTERM))",
    "trace process 1": "attempt(lambda: call('ptrace', 16, 1, 0, 0))",
    "trace the parent": "attempt(lambda: call('ptrace', 16, os.getppid(), 0, 0))",
    "read another process's memory": "attempt(lambda: call('process_vm_readv', 1, None, 0, None, 0, 0))",
    "steal a descriptor": "attempt(lambda: syscall(438, os.pidfd_open(1), 3, 0))",
    "become root": "attempt(lambda: os.setuid(0))",
    "become root's group": "attempt(lambda: os.setgid(0))",
    "set groups": "attempt(lambda: os.setgroups([0]))",
    "raise priority": "attempt(lambda: os.nice(-10))",
    "real-time scheduling": "attempt(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))",
    "gain a capability by running a program": (
        "out = subprocess.run(['cat', '/proc/self/status'], capture_output=True, text=True).stdout\n"
        "print('ESCAPED' if any(int(l.split()[1], 16) for l in out.splitlines() if l.startswith('CapEff')) else 'none')"
    ),
    "a program that sets its user id": (
        "import shutil; shutil.copy('/bin/sh', 'sh'); os.chmod('sh', 0o4755)\n"
        "print('ESCAPED' if subprocess.run(['./sh', '-c', 'id -u'], capture_output=True).stdout.strip() == b'0' else 'no')"
    ),
    # the machine's kernel
    "mount": "attempt(lambda: call('mount', b'none', b'/tmp', b'tmpfs', 0, None))",
    "unmount": "attempt(lambda: call('umount2', b'/tmp', 2))",
    "a new user namespace": "attempt(lambda: call('unshare', 0x10000000))",
    "a clone in a new namespace": "attempt(lambda: syscall(56, 0x10000000 | 17, 0, 0, 0, 0))",
    "enter a namespace": "attempt(lambda: call('setns', os.open('/proc/self/ns/net', 0), 0))",
    "load a module": "attempt(lambda: syscall(313, 0, b'', 0))",
    "bpf": "attempt(lambda: syscall(321, 0, None, 0))",
    "performance counters": "attempt(lambda: syscall(298, None, 0, -1, -1, 0))",
    "user faults": "attempt(lambda: syscall(323, 0))",
    "io_uring": "attempt(lambda: syscall(425, 8, b'\\0' * 120))",
    "keys": "attempt(lambda: syscall(250, 0, -3, 0, 0, 0))",
    "set the clock": "attempt(lambda: time.clock_settime(time.CLOCK_REALTIME, 0), OSError)",
    "reboot": "attempt(lambda: call('reboot', 0x01234567))",
    "rename the machine": "attempt(lambda: socket.sethostname('x'))",
    "personality": "attempt(lambda: call('personality', 0x0040000))",
    "the kernel's log": "attempt(lambda: syscall(103, 3, b' ' * 100, 100))",
    # network
    "a server on this machine": "attempt(lambda: socket.create_connection(('127.0.0.1', {port}), 2))",
    "a server over IPv6": "attempt(lambda: socket.create_connection(('::1', {port}), 2))",
    "TCP to the world": "attempt(lambda: socket.create_connection(('192.0.2.1', 80), 2))",
    "UDP to the world": "s = socket.socket(2, 2); attempt(lambda: s.sendto(b'x', ('192.0.2.1', 53)))",
    "UDP to everyone": "s = socket.socket(2, 2); s.setsockopt(1, 6, 1); attempt(lambda: s.sendto(b'x', ('255.255.255.255', 9)))",
    "names": "attempt(lambda: socket.getaddrinfo('example.com', 80))",
    "raw socket": "attempt(lambda: socket.socket(2, 3, 1))",
    "packet socket": "attempt(lambda: socket.socket(17, 3))",
    "netlink socket": "attempt(lambda: socket.socket(16, 3, 0))",
    "virtual machine socket": "attempt(lambda: socket.socket(40, 1).connect((2, 1024)))",
    "an abstract socket outside": "s = socket.socket(1); attempt(lambda: s.connect('{abstract}'))",
    "the engine's socket": "s = socket.socket(1); attempt(lambda: s.connect('/var/run/docker.sock'))",
}

#: What is stopped, within its limits, or has no effect; the sandbox is as new afterwards.
CONTAINED: dict[str, str] = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "fork bomb of sessions": "import os\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n    except OSError: pass",
    "thread bomb": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
    "memory bomb": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "memory bomb in many processes": (
        "import os, time\nfor _ in range(20):\n    if os.fork() == 0: break\n"
        "x = []\nwhile True:\n    try: x.append(bytearray(1 << 20))\n    except MemoryError: time.sleep(9)"
    ),
    "disk bomb": "i = 0\nwhile True:\n    open(f'f{i}', 'wb').write(b'x' * (8 << 20)); i += 1",
    "disk bomb in shared memory": "i = 0\nwhile True:\n    open(f'/dev/shm/f{i}', 'wb').write(b'x' * (8 << 20)); i += 1",
    "preallocation": "import os\nfd = os.open('f', os.O_CREAT | os.O_RDWR)\nos.posix_fallocate(fd, 0, 1 << 40)",
    "inode bomb": "i = 0\nwhile True:\n    open(f'f{i}', 'w').close(); i += 1",
    "deep folders": "import os\nwhile True: os.mkdir('d'); os.chdir('d')",
    "output flood": "while True: print('x' * 10000)",
    "error flood": "import sys\nwhile True: sys.stderr.write('x' * 10000)",
    "report flood": "display('x' * (64 << 20))",
    "forged report": "import os, json\nos.write(4, json.dumps({'results': [1], 'error': 'x', 'exit_code': 'y'}).encode() + b'\\n')",
    "report that is no report": "import os\nos.write(4, b'\\xff' * 100000)",
    "closed streams": "import os\nfor fd in range(100):\n    try: os.close(fd)\n    except OSError: pass",
    "endless loop": "while True: pass",
    "endless sleep": "import time\ntime.sleep(9999)",
    "ignored signals": (
        "import signal, time\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: time.sleep(1)"
    ),
    "signals to everyone": "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "signals to process 1": "import os, signal\nfor n in (1, 2, 9, 15, 17, 19):\n    try: os.kill(1, n)\n    except OSError: pass",
    "stopped group": "import os, signal\nos.kill(0, signal.SIGSTOP)",
    "background survivor": "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)",
    "orphan": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(1000)\n    os._exit(0)",
    "files left behind": "for d in ('.', '/tmp', '/dev/shm'):\n    open(d + '/left', 'w').write('x')",
    "a folder that may not be entered": "import os\nos.makedirs('a/b'); open('a/b/c', 'w').close(); os.chmod('a', 0)",
    "changed permissions of the scratch": "import os\nos.chmod('.', 0)",
    "state in the warm parent": "import builtins, sys, json\nbuiltins.print = None\njson.loads = None\nsys.modules['os'] = None",
    "a named pipe": "import os\nos.mkfifo('p'); open('p')",
    "descriptor exhaustion": "x = []\nwhile True: x.append(open('/dev/null'))",
    "huge arguments": "import subprocess\nsubprocess.run(['echo', 'x' * (1 << 20)] * 10)",
    "deep recursion": "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(): f()\nf()",
    "crash": "import ctypes\nctypes.string_at(0)",
    "abort": "import os\nos.abort()",
    "exit that cannot be caught": "import os\nos._exit(42)",
    "exit handler that hangs": "import atexit, time\natexit.register(time.sleep, 9999)",
    "thread that never ends": "import threading, time\nthreading.Thread(target=time.sleep, args=(9999,)).start()",
    "timer signals": "import signal, time\nsignal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\ntime.sleep(99)",
    "shared memory segment": "import ctypes\nprint(ctypes.CDLL(None).shmget(0x1234, 1 << 20, 0o1777))",
    "locked memory": "import mmap, ctypes\nm = mmap.mmap(-1, 256 << 20)\nctypes.CDLL(None).mlockall(3)\nm.write(b'x' * (256 << 20))",
    "source with a null": "x = '\\0'\nexec('\\0')",
    "surrogates": "print('\\udcff\\ud800')",
}
