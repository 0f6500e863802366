"""Small services on local ports: start, query, repair, write."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rollenv.envs.shell.checks import Line, Number, unchanged
from rollenv.envs.shell.draw import TaskDraw
from rollenv.envs.shell.running import Silent, Talk, Web
from rollenv.envs.shell.task import Family, ShellTask

FAMILY = Family("services", "small services on local ports: start, ask, repair, write")
_WEB = """import http.server, json, sys, urllib.parse

with open(sys.argv[1] if len(sys.argv) > 1 else "config.json") as file:
    config = json.load(file)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path, _, query = self.path.partition("?")
        asked = dict(urllib.parse.parse_qsl(query))
        status, body = 404, "not found"
        if "token" in config and self.headers.get("X-Token") != config["token"]:
            status, body = 403, "wrong token"
        elif path in config["pages"]:
            status, body = 200, config["pages"][path]
        elif path == config.get("list"):
            page, size = int(asked.get("page", 1)), 10
            items = config["items"]
            more = page * size < len(items)
            part = {"items": items[(page - 1) * size : page * size], "next": page + 1 if more else None}
            status, body = 200, json.dumps(part)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode() + b"\\n")

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", int(config["port"])), Handler).serve_forever()
"""
_PORTS = range(4000, 30000)
#: Command that waits until a port accepts connections.
_WAIT = "until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.05; done"


def _port(draw: TaskDraw) -> int:
    return draw.pick(_PORTS)


def _hidden(config: object, port: int) -> str:
    """Return a setup that starts a server and deletes its configuration."""
    text = json.dumps(config)
    start = "nohup python3 .server.py .config.json > /dev/null 2>&1 < /dev/null &"
    return f"cat > .config.json <<'END'\n{text}\nEND\n{start}\n{_WAIT.format(port=port)}\nrm .config.json .server.py"


def get(port: int, path: str, header: str = "") -> str:
    """Return a command that prints a page of a web server; a ``header`` is written ``'NAME': 'VALUE'``."""
    url = f"http://127.0.0.1:{port}{path}"
    request = f"u.Request('{url}', headers={{{header}}})"
    return f'python3 -c "import urllib.request as u; print(u.urlopen({request}).read().decode().strip())"'


def background(command: str) -> str:
    """Return a command that starts another one in the background."""
    return f"nohup {command} > /dev/null 2>&1 < /dev/null &"


@FAMILY.template(1, 3)
def _serve_folder(draw: TaskDraw, size: int) -> ShellTask:
    """Serve files over HTTP."""
    port = _port(draw)
    here = size == 1
    top = "" if here else f"{draw.topic()}/"
    files = {f"{top}{name}.txt": draw.text(2) for name in draw.words(1 + size)}
    where = "the current folder" if here else f"the folder {top}"
    pages: dict[str, str | None] = {f"/{path.removeprefix(top)}": text for path, text in files.items()}
    example = f", so that /{next(iter(files)).removeprefix(top)} is answered with that file" if not here else ""
    return ShellTask(
        f"Start a web server in the background that serves the files of {where} on port {port}{example}. It must keep "
        "running.",
        files,
        (background(f"python3 -m http.server {port}" + ("" if here else f" -d {top}")),),
        (Web(port, pages),),
    )


@FAMILY.template(1, 3)
def _ask_page(draw: TaskDraw, size: int) -> ShellTask:
    """Get a page from a running server."""
    port, answer = _port(draw), draw.token()
    paths = [f"/{name}" for name in draw.words(2 + size)]
    config = {"port": port, "pages": {path: draw.token() for path in paths} | {paths[0]: answer}}
    header = ""
    clause = ""
    if size == 3:
        config["token"] = draw.token(8)
        header = f"'X-Token': '{config['token']}'"
        clause = f" The server wants the header X-Token with the value {config['token']}."
    return ShellTask(
        f"A web server is running on port {port} of 127.0.0.1. Get its page {paths[0]} and write the page's text to "
        f"answer.txt.{clause}",
        {".server.py": _WEB},
        (f"{get(port, paths[0], header)} > answer.txt",),
        (Line("answer.txt", answer),),
        _hidden(config, port),
    )


@FAMILY.template(2, 4)
def _repair_config(draw: TaskDraw, size: int) -> ShellTask:
    """Repair the configuration of a server that does not start, or misbehaves."""
    port, wrong = draw.some(_PORTS, 2)
    paths = [f"/{name}" for name in draw.words(1 + size)]
    pages: dict[str, str | None] = {path: draw.sentence() for path in paths}
    config = {"port": wrong, "pages": pages}
    text = json.dumps(config, indent=2)
    fix = f"sed -i 's/{wrong}/{port}/' config.json"
    fault = ""
    if size > 2:
        text = text.replace('"\n  }', '",\n  }')
        fix += "; python3 -c \"t = open('config.json').read().replace(',\\n  }', '\\n  }'); "
        fix += "open('config.json', 'w').write(t)\""
        fault = " At the moment the file is not even valid JSON, so the server does not start."
    return ShellTask(
        f"'python3 server.py' starts a web server that reads config.json.{fault} Repair config.json so that the "
        f"server listens on port {port} with the same pages as now (leave server.py as it is), and start it in the "
        "background. It must keep running.",
        {"server.py": _WEB, "config.json": text},
        (fix, background("python3 server.py")),
        (Web(port, pages), *unchanged({"server.py": _WEB})),
    )


@FAMILY.template(2, 4)
def _change_page(draw: TaskDraw, size: int) -> ShellTask:
    """Change the configuration of a running server, and restart it."""
    port = _port(draw)
    paths = [f"/{name}" for name in draw.words(1 + size)]
    pages: dict[str, str | None] = {path: draw.sentence() for path in paths}
    new, extra = draw.sentence(), f"/{draw.word()}-{draw.token(3)}"
    program = f"import json; c = json.load(open('config.json')); c['pages']['{extra}'] = '{new}'; "
    program += "json.dump(c, open('config.json', 'w'))"
    gone = _WAIT.format(port=port).replace("until", "while")
    setup = f"{background('python3 server.py')} echo $! > server.pid\n{_WAIT.format(port=port)}"
    return ShellTask(
        f"A web server ('python3 server.py', process id in server.pid) is running on port {port}. It read config.json "
        f"when it started. Add the page {extra} with the text '{new}' to the pages in config.json, and start the "
        "server again, so that it serves all old pages and the new one on the same port. It must keep running.",
        {"server.py": _WEB, "config.json": json.dumps({"port": port, "pages": pages}, indent=2)},
        (f'python3 -c "{program}"; kill $(cat server.pid); {gone}', background("python3 server.py")),
        (Web(port, {**pages, extra: new}),),
        setup,
    )


@FAMILY.template(2, 5)
def _find_port(draw: TaskDraw, size: int) -> ShellTask:
    """Find the port, among several, with a page."""
    ports = draw.some(_PORTS, min(1 + size, 5))
    pages = {port: (f"/{word}", draw.token()) for port, word in zip(ports, draw.words(len(ports)), strict=True)}
    path, answer = pages[draw.pick(ports)]
    setup = []
    for port in ports:
        start = f"nohup python3 .server.py .{port}.json > /dev/null 2>&1 < /dev/null &"
        setup.append(f"echo '{json.dumps({'port': port, 'pages': dict([pages[port]])})}' > .{port}.json; {start}")
    setup += [_WAIT.format(port=port) for port in ports] + ["rm .*.json .server.py"]
    clause = ", ".join(map(str, sorted(ports)))
    command = get(0, path).replace("127.0.0.1:0", "127.0.0.1:$p")
    return ShellTask(
        f"Web servers are running on the ports {clause} of 127.0.0.1. Exactly one of them has the page {path}; the "
        "others answer with status 404. Write the text of that page to answer.txt.",
        {".server.py": _WEB},
        (f"for p in {clause.replace(',', '')}; do {command} 2>/dev/null; done > answer.txt",),
        (Line("answer.txt", answer),),
        "\n".join(setup),
    )


@FAMILY.template(3, 5)
def _all_pages(draw: TaskDraw, size: int) -> ShellTask:
    """Sum a list that is split into pages."""
    port, path, key = _port(draw), f"/{draw.topic()}", draw.pick(("price", "weight", "count"))
    items: list[dict[str, Any]] = [
        {"name": name, key: draw.number(1, 500)} for name in draw.words(15 * (size - 1) + draw.number(0, 9))
    ]
    config = {"port": port, "pages": {}, "list": path, "items": items}
    program = (
        "import json, urllib.request as u\n"
        "page, total = 1, 0\n"
        "while page:\n"
        f"    got = json.load(u.urlopen(f'http://127.0.0.1:{port}{path}?page={{page}}'))\n"
        f"    page, total = got['next'], total + sum(i['{key}'] for i in got['items'])\n"
        "print(total)"
    )
    return ShellTask(
        f"A web server is running on port {port} of 127.0.0.1. {path}?page=1 answers with a JSON object: items is a "
        f"list of objects, and next is the number of the next page, or null on the last one. Add up the values of "
        f"{key} in all items on all pages, and write the sum to answer.txt.",
        {".server.py": _WEB},
        (f'python3 -c "{program}" > answer.txt',),
        (Number("answer.txt", sum(item[key] for item in items)),),
        _hidden(config, port),
    )


#: A server's answer to a line, in words, in the oracle's program, and as a function.
_ANSWERS: tuple[tuple[str, str, Callable[[str], str]], ...] = (
    ("the line with its characters in reverse order", "line[::-1]", lambda line: line[::-1]),
    ("the line in upper case", "line.upper()", str.upper),
    ("the number of words in the line", "str(len(line.split()))", lambda line: str(len(line.split()))),
    (
        "the words of the line in alphabetical order, with a space between",
        "' '.join(sorted(line.split()))",
        lambda line: " ".join(sorted(line.split())),
    ),
    (
        "the longest word of the line (the first of them if several are equally long)",
        "max(line.split(), key=len)",
        lambda line: max(line.split(), key=len),
    ),
)


@FAMILY.template(3, 5)
def _line_server(draw: TaskDraw, size: int) -> ShellTask:
    """Write a server that answers lines with lines."""
    port = _port(draw)
    clause, code, answer = draw.pick(_ANSWERS)
    lines = tuple(draw.sentence() for _ in range(size))
    program = (
        "import socketserver\n"
        "class H(socketserver.StreamRequestHandler):\n"
        "    def handle(self):\n"
        "        for raw in self.rfile:\n"
        "            line = raw.decode().rstrip()\n"
        f"            self.wfile.write(({code} + '\\n').encode())\n"
        f"socketserver.ThreadingTCPServer(('127.0.0.1', {port}), H).serve_forever()\n"
    )
    return ShellTask(
        f"Write a TCP server and start it in the background on port {port} of 127.0.0.1. A client sends lines of "
        f"lower case words; the server answers each line, as soon as it has come, with one line: {clause}. One "
        "connection may carry many lines, and there may be several connections. The server must keep running.",
        {},
        (f"cat > server.py <<'END'\n{program}END", background("python3 server.py")),
        (Talk(port, lines, tuple(map(answer, lines))),),
    )


@FAMILY.template(4, 5)
def _json_server(draw: TaskDraw, size: int) -> ShellTask:
    """Write a web server over a table."""
    port, column = _port(draw), draw.pick(("city", "team", "room"))
    names = draw.words(8 * size)
    cities = draw.topics(5)
    rows = {name: draw.pick(cities) for name in names}
    program = (
        "import csv, http.server\n"
        "rows = {r['name']: r for r in csv.DictReader(open('people.csv'))}\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        row = rows.get(self.path[1:])\n"
        "        self.send_response(200 if row else 404); self.end_headers()\n"
        f"        self.wfile.write(row['{column}'].encode() if row else b'')\n"
        f"http.server.HTTPServer(('127.0.0.1', {port}), H).serve_forever()\n"
    )
    files: dict[str, bytes | str] = {
        "people.csv": f"name,{column}\n" + "".join(f"{name},{city}\n" for name, city in rows.items())
    }
    asked = draw.some(names, 3)
    return ShellTask(
        f"people.csv is a table with the columns name and {column}. Write a web server and start it in the background "
        f"on port {port} of 127.0.0.1. A GET request for /NAME is answered with status 200 and the {column} of that "
        "name as plain text, or with status 404 if the table has no such name. The server must keep running.",
        files,
        (f"cat > server.py <<'END'\n{program}END", background("python3 server.py")),
        (Web(port, {f"/{name}": rows[name] for name in asked} | {f"/{draw.token(6)}": None}), *unchanged(files)),
    )


@FAMILY.template(2, 3)
def _stop_server(draw: TaskDraw, size: int) -> ShellTask:
    """Stop the server on one port, and not the others."""
    ports = draw.some(_PORTS, size + 1)
    bodies = {port: draw.sentence() for port in ports}
    setup = []
    for port in ports:
        setup.append(f"echo '{json.dumps({'port': port, 'pages': {'/': bodies[port]}})}' > {port}.json")
        setup.append(background(f"python3 server.py {port}.json"))
    setup += [_WAIT.format(port=port) for port in ports]
    gone, *kept = ports
    return ShellTask(
        f"Web servers are running on the ports {', '.join(map(str, sorted(ports)))} of 127.0.0.1, each started with "
        f"'python3 server.py PORT.json'. Stop the one on port {gone}. The others must keep running.",
        {"server.py": _WEB},
        (
            f"p=$(grep -alz '^[{str(gone)[0]}]{str(gone)[1:]}[.]json$' /proc/[0-9]*/cmdline 2>/dev/null); "
            "p=${p#/proc/}; kill ${p%/cmdline}",
        ),
        (Silent(gone), *(Web(port, {"/": bodies[port]}) for port in kept)),
        "\n".join(setup),
    )
