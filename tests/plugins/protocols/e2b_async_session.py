"""The same with E2B's client for asyncio; see e2b_session.py."""

import asyncio
import os
import sys
import time

from e2b import CommandExitException, PtySize
from e2b.exceptions import FileNotFoundException, SandboxNotRunningException
from e2b_code_interpreter import AsyncSandbox


async def fails(kind, awaitable):
    try:
        await awaitable
    except kind as error:
        return error
    raise SystemExit(f"no {kind}")


async def code(box):
    seen = []

    async def hear(message):
        seen.append(message.line)

    done = await box.run_code("import os\nprint(os.environ['A'])\n5", on_stdout=hear)
    assert (done.text, seen) == ("5", ["1\n"])
    started = time.time()
    cells = [box.run_code(f"import time; time.sleep(0.2); {n}") for n in range(5)]
    assert [cell.text for cell in await asyncio.gather(*cells)] == list("01234")
    assert time.time() - started >= 1, "cells of one context wait for each other"
    contexts = await asyncio.gather(*(box.create_code_context() for _ in range(4)))
    meet = "import glob, time; open('here-{}', 'w')\nwhile len(glob.glob('here-*')) < 4: time.sleep(0.1)"
    meetings = [box.run_code(meet.format(n), context=context) for n, context in enumerate(contexts)]
    assert not any(done.error for done in await asyncio.gather(*meetings)), "those of several do not"
    for context in contexts:
        await box.remove_code_context(context)
    task = asyncio.create_task(box.run_code("import time\nwhile True: time.sleep(0.1)"))
    await asyncio.sleep(0.5)
    task.cancel()
    await asyncio.wait([task])
    assert (await asyncio.wait_for(box.run_code("6"), 60)).text == "6"


async def files(box):
    await box.files.write("a/b", "x")
    assert await box.files.read("a/b") == "x"
    assert b"".join([piece async for piece in await box.files.read("a/b", format="stream")]) == b"x"
    await fails(FileNotFoundException, box.files.read("none"))
    events = []
    watch = await box.files.watch_dir("a", on_event=events.append, timeout=20)
    await box.files.write("a/c", "x")
    for _ in range(100):
        await asyncio.sleep(0.1)
        if events:
            break
    assert (events[0].name, events[0].type.value) == ("c", "create")
    await watch.stop()


async def commands(box):
    out = []
    done = await box.commands.run("echo hi; sleep 0.1; echo ho", on_stdout=out.append)
    assert done.stdout == "".join(out) == "hi\nho\n"
    assert (await fails(CommandExitException, box.commands.run("exit 2"))).exit_code == 2
    handle = await box.commands.run("cat", background=True, stdin=True)
    await box.commands.send_stdin(handle.pid, "in")
    await handle.close_stdin()
    assert (await handle.wait()).stdout == "in"
    many = await asyncio.gather(*(box.commands.run(f"sleep 1; echo {n}") for n in range(20)))
    assert [one.stdout for one in many] == [f"{n}\n" for n in range(20)]
    shown = []
    term = await box.pty.create(PtySize(24, 80), on_data=shown.append)
    await box.pty.send_stdin(term.pid, b"echo $((6*7)); exit\n")
    await term.wait()
    assert b"42" in b"".join(shown)


async def main():
    box = await AsyncSandbox.create(timeout=200, envs={"A": "1"})
    await code(box)
    await files(box)
    await commands(box)
    handle = await box.commands.run("sleep 60", background=True)
    killing = asyncio.create_task(box.kill())
    await fails(SandboxNotRunningException, handle.wait())
    assert await killing is True
    assert not await box.is_running()
    print("all")


asyncio.run(main())
sys.stdout.flush()
os._exit(0)  # the client's native threads abort now and then when Python ends under them
