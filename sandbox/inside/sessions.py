"""Cells of other languages: a persistent program runs one cell after another and keeps its state."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping

from rollenv.sandbox.inside import protocol
from rollenv.sandbox.inside.protocol import FrameKind, frame

#: Both programs read "number, newline, code, null" from one descriptor and write "number status" lines to another;
#: lines of JavaScript end with a document of the result or the error.
_BASH = r"""
trap 'return 130' INT
while IFS= read -r -d '' -u "$1" __cell; do
    __number=${__cell%%$'\n'*}
    . /dev/fd/9 9< <(printf '%s\n' "${__cell#*$'\n'}")
    printf '%s %s\n' "$__number" "$?" >&"$2"
done
"""
_NODE = r"""
const fs = require('fs'), net = require('net'), util = require('util'), vm = require('vm');
const [cells, done] = process.argv.slice(-2).map(Number);
let stop = null;
process.on('SIGINT', () => stop && stop(new Error('interrupted')));
process.on('uncaughtException', (error) => console.error(error && error.stack || error));
Object.assign(globalThis, {require, module: {exports: {}}, exports: {}});
const compiled = (code) => {
  try { return new vm.Script(code, {filename: '<code>'}); } catch (error) {
    if (!(error instanceof SyntaxError) || !/\bawait\b/.test(code)) throw error;
    const value = code.trim().replace(/;$/, '');
    try { return new vm.Script(`(async () => (${value}\n))()`, {filename: '<code>'}); } catch (_) {
      return new vm.Script(`(async () => {${code}\n})()`, {filename: '<code>'}); }
  }
};
const run = async (text) => {
  const at = text.indexOf('\n'), number = text.slice(0, at);
  let status = 0, result = {};
  try {
    let value = compiled(text.slice(at + 1)).runInThisContext({breakOnSigint: true});
    if (value && typeof value.then === 'function')
      value = await Promise.race([value, new Promise((_, reject) => { stop = reject; })]);
    if (value !== undefined) result = {text: util.inspect(value)};
  } catch (error) {
    status = 1;
    const known = error !== null && typeof error === 'object';
    result = {name: String(known && error.name || 'Error'), value: String(known ? error.message : error),
              trace: String(known && error.stack || error)};
  }
  stop = null;
  fs.writeSync(done, `${number} ${status} ${JSON.stringify(result)}\n`);
};
let rest = '', turn = Promise.resolve();
new net.Socket({fd: cells, readable: true, writable: false}).setEncoding('utf8').on('data', (data) => {
  const parts = (rest + data).split('\0');
  rest = parts.pop();
  for (const part of parts) turn = turn.then(() => run(part));
}).on('end', () => process.exit(0));
"""
#: Commands by language.
LANGUAGES = {"bash": ("bash", "--norc", "--noprofile", "-c", _BASH, "bash"), "javascript": ("node", "-e", _NODE, "--")}
_MAX_LINE = 8 << 20
#: Seconds that a cell may take to react to an interrupt.
_GRACE = 0.3


class LanguageSession:
    """Runs cells of one language."""

    def __init__(self, fd: int, language: str):
        self.fd, self.language, self.pid = fd, language, os.getpid()
        if shutil.which(LANGUAGES[language][0]) is None:
            raise FileNotFoundError(2, "no such program in the sandbox", LANGUAGES[language][0])
        self._process: subprocess.Popen[bytes] | None = None
        self._number = 0

    @property
    def reporting(self) -> bool:
        """True in the process that runs cells; it has no forks."""
        return os.getpid() == self.pid

    def run(self, code: str, env: Mapping[str, str] | None = None) -> int:
        """Run one cell and report the result."""
        if "\0" in code:
            return self._failed("ValueError", "the code has a null character", "")
        if self._process is None:
            cells, self._cells = os.pipe()
            self._lines, lines = os.pipe()
            self._buffer = b""
            for fd in (cells, lines):
                os.set_inheritable(fd, True)
            command = [*LANGUAGES[self.language], str(cells), str(lines)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, close_fds=True, pass_fds=(cells, lines), preexec_fn=_own_group
            )
            os.close(cells)
            os.close(lines)
            os.set_blocking(self._cells, False)
        set_env, restore_env = _variables(self.language, env or {})
        try:
            if env:
                self._tell(set_env)
            line = self._tell(code)
            if env and line is not None:
                self._tell(restore_env)
        except KeyboardInterrupt:
            line = self._forward_interrupt()
            if env and line is not None:
                self._tell(restore_env)
            kept = "" if line else "; its process did not react and was ended"
            return self._failed("KeyboardInterrupt", f"it was interrupted{kept}", "")
        if line is None:
            assert self._process is not None
            ended = self._process.wait()
            self._kill()
            how = f"it exited with {ended}" if ended >= 0 else f"a signal ended it: {-ended}"
            self._failed("Exit", f"{how}; the next cell starts again without the state", "")
            return ended
        status, _, document = line.partition(" ")
        result = json.loads(document) if document else {}
        if text := result.get("text"):
            parts = (frame(FrameKind.RESULT_BEGIN, "main"), frame(FrameKind.FIELD, "text", str(text)))
            protocol.write_all(self.fd, b"".join(parts) + frame(FrameKind.RESULT_END))
        if status == "0":
            return 0
        if not result:
            return self._failed("Exit", f"the last command exited with {status}", "")
        return self._failed(str(result["name"]), str(result["value"]), str(result["trace"]))

    def interrupted(self) -> None:
        """Report an interrupt between the cell's end and its report."""
        self._failed("KeyboardInterrupt", "it was interrupted", "")

    def _tell(self, code: str) -> str | None:
        """Send a cell and wait for the status line; return None if the program has ended."""
        assert self._process is not None
        self._number += 1
        cell = f"{self._number}\n{code}\0".encode("utf-8", "replace")
        over = os.pidfd_open(self._process.pid)
        watched = [self._lines, over]
        try:
            while True:
                readable, writable, _ = select.select(watched, [self._cells] if cell else [], [])
                if writable:
                    try:
                        cell = cell[os.write(self._cells, cell[: 1 << 16]) :]
                    except BrokenPipeError:
                        cell = b""
                if self._lines in readable:
                    try:
                        if (line := self._line()) is not None:
                            return line
                    except EOFError:
                        watched.remove(self._lines)
                elif over in readable:
                    return None
        finally:
            os.close(over)

    def _line(self) -> str | None:
        if not (data := os.read(self._lines, 1 << 16)):
            raise EOFError
        self._buffer = (self._buffer + data)[-_MAX_LINE:]
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            number, _, rest = line.decode("utf-8", "replace").partition(" ")
            if number == str(self._number):
                return rest
        return None

    def _forward_interrupt(self) -> str | None:
        """Forward an interrupt; return the status line, or None if the program had to be killed."""
        assert self._process is not None
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGINT)
        until = time.monotonic() + _GRACE
        with contextlib.suppress(KeyboardInterrupt, EOFError):
            while (left := until - time.monotonic()) > 0:
                if not select.select([self._lines], [], [], left)[0]:
                    break
                if (line := self._line()) is not None:
                    return line
                if self._process.poll() is not None:
                    break
        self._kill()
        return None

    def _kill(self) -> None:
        assert self._process is not None
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for fd in (self._cells, self._lines):
            os.close(fd)
        self._process = None

    def _failed(self, name: str, value: str, trace: str) -> int:
        if trace:
            with contextlib.suppress(OSError):
                protocol.write_all(2, trace.encode("utf-8", "replace") + b"\n")
        report = frame(FrameKind.ERROR, name.replace("\0", ""), value.replace("\0", "\\0"), trace)
        protocol.write_all(self.fd, report)
        return 1


def _own_group() -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _variables(language: str, env: Mapping[str, str]) -> tuple[str, str]:
    """Return cells that set environment variables for a cell and that restore them after it."""
    if language == "bash":
        names = " ".join(map(shlex.quote, env))
        values = " ".join(f"{shlex.quote(k)}={shlex.quote(v)}" for k, v in env.items())
        before = f"__before=$(declare -p {names} 2> /dev/null); export {values}"
        return before, f'unset -v {names}; eval "$__before"; unset -v __before'
    before = f"globalThis.__before = {{...process.env}}; void Object.assign(process.env, {json.dumps(dict(env))})"
    restore = "k in __before ? process.env[k] = __before[k] : delete process.env[k]"
    return before, f"for (const k of {json.dumps(list(env))}) {restore}; delete globalThis.__before"
