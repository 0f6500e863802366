"""Machines that may reach some hosts through a proxy, and no others."""

import os
import socket
import threading

import pytest
from listening import Answers, listening

from rollenv.sandbox import Image, Machine
from rollenv.sandbox.errors import InvalidArgument
from rollenv.sandbox.network import AllowList, HostRefused

FETCH = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], data=b"x" * int(sys.argv[2]) or None, timeout=20).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""
#: Says something to the proxy as it stands, and prints the answer.
RAW = """
import os, socket, sys, urllib.parse
proxy = urllib.parse.urlsplit(os.environ["http_proxy"])
with socket.create_connection((proxy.hostname, proxy.port)) as link:
    link.sendall(sys.argv[1].encode().decode("unicode_escape").encode("latin-1"))
    link.shutdown(socket.SHUT_WR) if len(sys.argv) > 2 else None
    while data := link.recv(4096): sys.stdout.write(data.decode("latin-1"))
"""


class Told(Answers):
    """Says what it was asked."""

    def do_GET(self):
        size = int(self.headers.get("Content-Length", 0))
        text = f"{self.command} {self.path} {len(self.rfile.read(size))} {dict(self.headers)}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_POST = do_GET


@pytest.fixture(scope="module")
def servers():
    """The ports of two servers of this host."""
    with listening(Told) as one, listening(Told) as other:
        yield [int(address.rpartition(":")[2]) for address in (one, other)]


@pytest.fixture(scope="module")
def machine(servers):
    with Machine.create(network=[f"127.0.0.1:{servers[0]}"]) as machine:
        machine.files.write("/fetch.py", FETCH)
        machine.files.write("/raw.py", RAW)
        yield machine


def fetch(machine, url, size=0):
    # no_proxy names the loopback, which is the machine's own
    return machine.run(["python3", "/fetch.py", url, str(size)], env={"no_proxy": "", "NO_PROXY": ""}).stdout


def test_a_listed_host_is_reached_and_another_is_not(machine, servers):
    listed, other = servers
    said = fetch(machine, f"http://127.0.0.1:{listed}/a/b?c=%20d", 300_000)
    assert said.startswith("POST /a/b?c=%20d 300000")
    assert f"'Host': '127.0.0.1:{listed}'" in said
    assert "roxy" not in said
    assert fetch(machine, "http://10.0.0.1:1/").startswith("403 10.0.0.1:")
    assert fetch(machine, "http://example.com:1/").startswith("403 example.com:1 is not on this machine's list")
    for host in ("127.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]"):  # they are the machine's own
        assert fetch(machine, f"http://{host}:{other}/").startswith("502 ")
    direct = machine.run(["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{listed}"])
    assert "refused" in direct.stderr, "the loopback is the machine's own"


OWN = """
import http.server, socket, threading, urllib.request
class Own(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
    def server_bind(self):
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(data[::-1])
    def log_message(self, *_): pass
with Own(("::", 8123), Handler) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for host in ("127.0.0.1", "localhost", "0.0.0.0", "[::1]", "127.0.0.2", "127.1.2.3", socket.gethostname()):
        data = bytes(range(256)) * 4000
        print(urllib.request.urlopen(f"http://{host}:8123/", data=data, timeout=20).read() == data[::-1])
    server.shutdown()
"""


@pytest.mark.parametrize("env", [{}, {"no_proxy": "", "NO_PROXY": ""}])
def test_a_machine_reaches_its_own_servers_by_all_its_names_and_addresses(env, machine):
    done = machine.run(["python3", "-c", OWN], env=env)
    assert set(done.stdout.split()) == {"True"}, done


@pytest.mark.parametrize(
    ("hosts", "after"),
    [
        ("", "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n"),
        ("10.0.0.1 db\n::1 localhost", "10.0.0.1 db\n::1 localhost\n127.0.0.1 sandbox\n"),
        ("10.0.0.2 sandbox\n", "10.0.0.2 sandbox\n"),
    ],
)
def test_the_name_of_a_machine_has_an_address_in_every_image(hosts, after, tmp_path):
    (tmp_path / "0/etc").mkdir(parents=True)
    (tmp_path / "0/etc/hosts").write_text(hosts)
    with Machine.create(Image.host().over(tmp_path)) as machine:
        assert machine.run("cat /etc/hosts").stdout == after
        assert machine.run("getent hosts $(hostname)").stdout.split()[0] == after.split()[-2 if hosts else 0]


def test_what_is_no_file_in_the_place_of_hosts_stays(tmp_path):
    for number, make in enumerate((lambda path: path.symlink_to("/app/other"), os.mkfifo, lambda path: path.mkdir())):
        (tmp_path / f"{number}/0/etc").mkdir(parents=True)
        make(tmp_path / f"{number}/0/etc/hosts")
        with Machine.create(Image.host().over(tmp_path / f"{number}")) as machine:
            assert machine.run("ls /app").stdout == ""


def test_tunnels_carry_bytes_both_ways(machine, servers):
    inner = f"GET /tunnel HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n"  # noqa: F541
    asked = f"CONNECT 127.0.0.1:{servers[0]} HTTP/1.1\\r\\n\\r\\n{inner}"
    said = machine.run(["python3", "/raw.py", asked]).stdout
    assert said.startswith("HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.0 200 OK")
    assert "GET /tunnel" in said


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "GET",
        "GET / HTTP/1.1\\r\\n\\r\\n",
        "GET /\\r\\n\\r\\n",
        "CONNECT pypi.org HTTP/1.1\\r\\n\\r\\n",
        "GET https://pypi.org/ HTTP/1.1\\r\\n\\r\\n",
        "GET http://[::1/ HTTP/1.1\\r\\n\\r\\n",
        "CONNECT x:99999 HTTP/1.1\\r\\n\\r\\n",
        "\\xff\\xfe \\x00 z\\r\\n\\r\\n",
        "GET http://pypi.org/ HTTP/1.1\\nHost:evil.com\\r\\n\\r\\n",
        "GET http://pypi.org/ HTTP/1.1\\r\\nA: b\\nHost: evil.com\\r\\n\\r\\n",
        "GET http://pypi.org/ HTTP/1.1\\r\\nHost : evil.com\\r\\n\\r\\n",
        "GET http://pypi.org/ HTTP/1.1\\r\\nA: b\\r\\n Host: evil.com\\r\\n\\r\\n",
    ],
)
def test_what_is_no_request_is_refused(machine, asked):
    assert machine.run(["python3", "/raw.py", asked, "end"]).stdout.startswith("HTTP/1.1 400 ")


def test_a_head_without_end_is_refused(machine):
    code = "import os,socket,urllib.parse as u; p=u.urlsplit(os.environ['http_proxy']);"
    code += "s=socket.create_connection((p.hostname,p.port));s.sendall(b'GET http://a/'+b'a'*70000);print(s.recv(99))"
    assert "431" in machine.run(["python3", "-c", code]).stdout


def test_many_connections_that_end_badly_leave_room_for_others(machine, servers):
    code = "import os,socket,urllib.parse as u; p=u.urlsplit(os.environ['http_proxy']);"
    code += "a=[socket.create_connection((p.hostname,p.port)) for _ in range(100)]"
    assert machine.run(["python3", "-c", code]).exit_code == 0
    assert fetch(machine, f"http://127.0.0.1:{servers[0]}/").startswith("GET / 0")


def test_tunnels_lead_from_a_machine_to_a_server_of_another(servers):
    with Machine.create() as other:
        other.run("mkdir /w; echo kept > /w/x; cd /w; nohup python3 -m http.server 80 > /dev/null 2>&1 & sleep 1")
        address = other.ports.forward(80).address
        with Machine.create(tunnels={80: address, 8080: f"127.0.0.1:{servers[0]}", 81: "127.0.0.1:1"}) as machine:
            machine.files.write("/fetch.py", FETCH)
            assert fetch(machine, "http://localhost/x") == "kept\n\n"
            assert fetch(machine, "http://localhost:8080/y").startswith("GET /y")
            assert machine.run(["python3", "/fetch.py", "http://localhost:81/", "0"]).exit_code == 1


def test_the_way_out_ends_with_the_machine(servers):
    machine = Machine.create(network=[f"127.0.0.1:{servers[0]}"])
    before = threading.active_count()
    machine.run("true")
    machine.kill()
    assert threading.active_count() < before


def test_without_a_list_there_is_no_way_out(servers):
    with Machine.create() as machine:
        assert machine.run("env | grep -ci proxy; cat /proc/net/tcp | wc -l").stdout.split() == ["0", "1"]


NAMES = {
    "pypi.org": ("pypi.org:443 pypi.org:80 PyPI.org:443 pypi.org.:443", "pypi.org:22 a.pypi.org:443 xpypi.org:443"),
    "*.debian.org": ("deb.debian.org:80 a.b.debian.org:443", "debian.org:80 xdebian.org:80 debian.org.evil.com:80"),
    "*": ("anything.at.all:443", "anything:25 127.0.0.1:80 10.1.1.1:443 8.8.8.8:53"),
    "git.host:9418": ("git.host:9418", "git.host:443"),
    "10.0.0.0/8": ("10.1.2.3:80", "11.0.0.1:80 10.1.2.3:22 ::ffff:11.0.0.1:80"),
    "::1": ("::1:80", "::2:80"),
}


@pytest.mark.parametrize("entry", NAMES)
def test_entries_allow_what_they_say(entry, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, **_: [(0, 0, 0, "", ("8.8.8.8", port))])
    allowed = AllowList([entry])
    good, bad = (each.split() for each in NAMES[entry])
    for target in good:
        host, _, port = target.rpartition(":")
        assert allowed.addresses(host, int(port))
    for target in bad:
        host, _, port = target.rpartition(":")
        with pytest.raises(HostRefused):
            allowed.addresses(host, int(port))


@pytest.mark.parametrize(
    "address",
    """
    127.0.0.1 10.0.0.7 169.254.169.254 ::1 ::ffff:127.0.0.1 fe80::1%eth0 0.0.0.0 224.0.0.1 64:ff9b::169.254.169.254
    64:ff9b:1::10.0.0.7 2002:7f00:1::1 ::127.0.0.1 ::ffff:0:127.0.0.1 fec0::1
    """.split(),  # noqa: SIM905
)
def test_a_name_does_not_lead_to_this_host_or_its_neighbours(address, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, **_: [(0, 0, 0, "", (address, port))])
    with pytest.raises(HostRefused):
        AllowList(["evil.com", "*"]).addresses("evil.com", 80)
    if address == "10.0.0.7":
        assert AllowList(["evil.com", "10.0.0.0/8"]).addresses("evil.com", 80) == [address]


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::8.8.8.8"])
def test_a_name_leads_to_the_public_internet(address, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, **_: [(0, 0, 0, "", (address, port))])
    assert AllowList(["*"]).addresses("good.com", 443) == [address]


@pytest.mark.parametrize(
    "wrong", ["pypi.org", [""], ["http://pypi.org"], ["a b"], ["a:0"], ["a:x"], ["*.*"], ["10.0.0.1/8"], [3], ["a/b"]]
)
def test_what_is_no_list_of_hosts_is_an_error(wrong):
    with pytest.raises(InvalidArgument):
        AllowList(wrong)
