"""Trackers: what they store can be read back with their own tools, and their failures never end training."""

import json
import logging
import struct
import subprocess
import sys
import time

import pytest
from listening import Answers, listening

from rollenv import MissingExtra, UsageError
from rollenv.plugins.trackers import AlertTracker, MlflowTracker, SwanLabTracker
from rollenv.plugins.trackers.boards import TensorBoardTracker, WandbTracker
from rollenv.plugins.trackers.common import (
    MOST_CHARACTERS,
    MOST_EPISODES,
    episode_rows,
    flat,
    name_and_group,
    transcript,
)
from rollenv.report import open_run, write_report
from rollenv.rollout.types import Task, Trajectory, Turn
from rollenv.trainers.alarms import Alarm
from rollenv.trainers.tracking import Trackers

CONFIG = {
    "seed": 3,
    "env": {"id": "game:Sokoban-v0-easy", "kwargs": {}},
    "optimizer": {"lr": 1e-4, "betas": [0.9, 0.95]},
}


def episode(seed=0, said="up", saw="# markdown | \ud800", success=True):
    turns = [Turn((), (), (), 0.5, said, saw), Turn((), (), (), 0.5, said, saw)]
    return Trajectory(Task("game:Sokoban-v0-easy", seed), turns, "terminated", success, final_observation="Solved.")


def follow(tracker, path, iterations, config=CONFIG):
    """A run, or a part of one, of this many iterations."""
    tracker.start(path, config)
    for i in iterations:
        tracker.log(i, {"reward": i / 4, "time/collect": 1.5})
    tracker.episodes(iterations[-1], [episode(2**47 + 1), episode(1, success=False)])
    (path / "report.html").write_text("<p>report</p>")
    tracker.finish([path / "report.html", path / "absent.html"])


# -- TensorBoard -------------------------------------------------------------------------------------------------------


@pytest.fixture
def read_events():
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def read(path):
        events = accumulator.EventAccumulator(str(path / "tensorboard"), {accumulator.TENSORS: 0})
        events.Reload()
        return events

    return read


@pytest.mark.slow
def test_tensorboard_reads_curves_episodes_and_settings_of_a_run_that_was_continued(tmp_path, read_events):
    follow(TensorBoardTracker(), tmp_path, range(6))
    follow(TensorBoardTracker(), tmp_path, range(4, 8))  # the checkpoint was at 3
    events = read_events(tmp_path)
    assert [(e.step, e.value) for e in events.Scalars("reward")] == [(i, i / 4) for i in range(8)]
    text = [e.tensor_proto.string_val[0].decode() for e in events.Tensors("episodes/0/text_summary")]
    assert f"    seed: {2**47 + 1}" in text[-1]
    assert "    > up" in text[-1]
    assert "# markdown" in text[-1]
    plugin = events.SummaryMetadata("_hparams_/session_start_info")
    assert plugin.plugin_data.plugin_name == "hparams"
    assert b"optimizer.lr" in plugin.plugin_data.content
    assert b'"lr": 0.0001' in events.Tensors("config/text_summary")[0].tensor_proto.string_val[0]


@pytest.mark.integration
def test_a_full_disk_is_one_warning_and_training_goes_on(tmp_path):
    pytest.importorskip("tensorboard")
    program = f"""
import logging, resource
from pathlib import Path
from rollenv.plugins.trackers.boards import TensorBoardTracker
from rollenv.trainers.tracking import Trackers
logging.basicConfig(format="%(levelname)s %(message)s")
trackers = Trackers([TensorBoardTracker()])
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
trackers.start(Path({str(tmp_path)!r}), {{}})
for i in range(300):
    trackers.log(i, {{"reward": 1.0}})
trackers.finish([])
print("trained to the end")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained to the end\n"
    assert done.stderr.count("WARNING TensorBoardTracker could not") == 1, done.stderr
    assert "File too large" in done.stderr


# -- W&B ---------------------------------------------------------------------------------------------------------------


def offline_records(path):
    """What W&B stored, in the order of its offline runs: a log in LevelDB's format of serialised records."""
    from wandb.proto.wandb_internal_pb2 import Record

    for file in sorted(path.glob("wandb/offline-run-*/run-*.wandb")):
        content, at, data = file.read_bytes(), 7, b""
        while at + 7 <= len(content):
            if 32768 - at % 32768 < 7:  # no record's head crosses the end of a block
                at += 32768 - at % 32768
            size, kind = struct.unpack_from("<HB", content, at + 4)
            data += content[at + 7 : at + 7 + size]
            at += 7 + size
            if kind in (1, 4):  # whole, or the last part
                record, data = Record.FromString(data), b""
                yield record


@pytest.mark.integration
def test_wandb_stores_a_run_offline_and_continues_it_under_its_id(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing is there: it has to do without a network
    follow(WandbTracker("some project", mode="offline", tags=["a"]), tmp_path, range(3))
    kept = json.loads((tmp_path / "wandb.json").read_text())["id"]
    time.sleep(1.1)  # W&B names folders by the second
    follow(WandbTracker("some project", mode="offline"), tmp_path, range(2, 5))
    deadline = time.monotonic() + 30
    while sum(r.HasField("exit") for r in offline_records(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)  # W&B's own process may still be writing
    records = list(offline_records(tmp_path))
    runs = [r.run for r in records if r.HasField("run")]
    assert {run.run_id for run in runs} == {kept}
    assert {run.project for run in runs} == {"some project"}
    assert {run.display_name for run in runs} == {tmp_path.name}
    rows = [
        {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in r.history.item}
        for r in records
        if r.HasField("history")
    ]
    assert [(r["iteration"], r["reward"]) for r in rows if "reward" in r] == [(i, i / 4) for i in range(5)]
    stored = {item.key: item.value_json for r in records for item in (*r.config.update, *r.run.config.update)}
    assert json.loads(stored["optimizer"])["lr"] == 1e-4
    artifacts = [r for r in records if r.HasField("request") or r.HasField("artifact")]
    assert any(entry.path == "report.html" for r in artifacts for entry in r.artifact.manifest.contents)
    (table, *_) = tmp_path.glob("wandb/offline-run-*/files/media/table/*.table.json")
    table = json.loads(table.read_text())
    seed = table["columns"].index("seed")
    assert [row[seed] for row in table["data"]] == [str(2**47 + 1), "1"]


def test_an_unknown_mode_is_refused():
    pytest.importorskip("wandb")
    with pytest.raises(UsageError, match="offline"):
        WandbTracker(mode="of line")


# -- without the packages, and when things fail ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tracker", "module", "name"),
    [
        (WandbTracker, "wandb", "wandb"),
        (SwanLabTracker, "swanlab", "swanlab"),
        (MlflowTracker, "mlflow", "mlflow"),
        (TensorBoardTracker, "torch.utils.tensorboard", "tensorboard"),
    ],
)
def test_a_missing_package_is_a_line_with_the_command_that_installs_it(tracker, module, name, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    if module.startswith("torch"):
        monkeypatch.delattr(sys.modules["torch.utils"], "tensorboard", raising=False)
    with pytest.raises(MissingExtra, match=rf"pip install 'rollenv\[{name}\]'") as error:
        tracker()
    assert "\n" not in str(error.value)


def test_alarms_are_posted_to_the_webhook_and_a_webhook_that_fails_is_one_warning(tmp_path, caplog):
    posted = []

    class Webhook(Answers):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200 if len(posted) == 1 else 500)
            self.end_headers()

    with listening(Webhook) as address:
        trackers = Trackers([AlertTracker(f"http://{address}/hook")])
        trackers.start(tmp_path / "run-7", CONFIG)
        for iteration in (3, 4, 5):
            trackers.alarm(iteration, Alarm("entropy_collapse", "entropy fell to 0.01", "Lower the learning rate"))
    assert [(body["run"], body["iteration"], body["alarm"]) for body in posted] == [
        ("run-7", iteration, "entropy_collapse") for iteration in (3, 4, 5)
    ]
    assert "entropy fell to 0.01" in posted[0]["text"]
    assert caplog.text.count("AlertTracker could not report an alarm") == 1


class Breaks:
    """A tracker whose library fails where it is told to."""

    def __init__(self, *at):
        self.at, self.calls = at, []

    def _call(self, name):
        self.calls.append(name)
        if name in self.at:
            raise OSError(28, "No space left on device")

    def start(self, run_path, config):
        self._call("start")

    def log(self, iteration, metrics):
        self._call("log")

    def episodes(self, iteration, trajectories):
        self._call("episodes")

    def finish(self, artifacts):
        self._call("finish")


def test_failures_are_warned_of_once_and_others_get_everything(tmp_path, caplog):
    bad, worse, good = Breaks("log", "finish"), Breaks("start"), Breaks()
    with caplog.at_level(logging.WARNING):
        follow(Trackers([bad, worse, good]), tmp_path, range(3))
    assert good.calls == ["start", "log", "log", "log", "episodes", "finish"]
    assert bad.calls == good.calls, "it may work again later"
    assert worse.calls == ["start"]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert all("No space left on device" in line and "Training goes on" in line for line in said)


def test_a_library_that_wants_to_exit_does_not_end_the_run(tmp_path, caplog):
    class Exits(Breaks):
        def _call(self, name):
            self.calls.append(name)
            if name != "start":
                raise SystemExit(3)

    one = Exits()
    with caplog.at_level(logging.WARNING):
        follow(Trackers([one]), tmp_path, range(2))
    assert one.calls == ["start", "log", "log", "episodes", "finish"]
    assert "SystemExit" in caplog.text


def test_a_user_who_interrupts_is_heard(tmp_path):
    class Interrupted(Breaks):
        def log(self, iteration, metrics):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow(Trackers([Interrupted()]), tmp_path, range(1))


def test_a_file_in_the_way_of_tensorboard_is_a_warning(tmp_path, caplog):
    pytest.importorskip("tensorboard")
    (tmp_path / "tensorboard").write_text("")
    with caplog.at_level(logging.WARNING):
        follow(Trackers([TensorBoardTracker()]), tmp_path, range(2))
    assert [r.getMessage().split(":")[0] for r in caplog.records] == ["TensorBoardTracker could not start"]


# -- what is shown -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, MOST_EPISODES, MOST_EPISODES + 1, 1000])
def test_a_few_episodes_are_shown_spread_over_all(n):
    rows = episode_rows([episode(seed) for seed in range(n)])
    seeds = [int(row["seed"]) for row in rows]
    assert len(rows) == min(n, MOST_EPISODES)
    assert seeds == sorted(set(seeds))
    assert n < 1000 or (seeds[0] == 0 and seeds[-1] > 900)


def test_a_transcript_can_be_stored_and_is_bounded():
    text = transcript(episode(said="x" * 10 * MOST_CHARACTERS))
    assert len(text) < MOST_CHARACTERS + 20
    assert text.startswith("[1] # markdown")
    assert text.endswith("Solved.")
    text.encode()
    failed = Trajectory(Task("x:y", 0), error="the environment crashed")
    assert transcript(failed) == "the environment crashed"


def test_settings_become_dotted_keys():
    assert flat(CONFIG) == {
        "seed": 3,
        "env.id": "game:Sokoban-v0-easy",
        "env.kwargs": "{}",
        "optimizer.lr": 1e-4,
        "optimizer.betas": "[0.9, 0.95]",
    }
    assert flat({"a": {"b": {"c": None, "d": True}}}) == {"a.b.c": "null", "a.b.d": True}


def test_trackers_import_nothing_heavy_before_they_are_made():
    heavy = "{'wandb', 'tensorboard', 'torch'}"
    program = f"import sys, rollenv.trainers.tracking; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"


def test_addresses_with_passwords_and_webhooks_are_not_published(tmp_path):
    settings = {
        "env": {"id": "math:Arithmetic-v0-digit"},
        "trackers": {"alerts": "https://hooks.example/T0-secret"},
        "rewards": {"domains": [{"url": "http://me:secret@10.0.0.1:8000/v1"}]},
        "player": {"url": "http://a:1,http://b:secret@c:2/v1"},
        "path": "/data/a@b",
    }
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 0, "eval/success": 0.5}\n')
    write_report([tmp_path], tmp_path / "report.html")
    assert "secret" not in (tmp_path / "report.html").read_text()
    shown = open_run(tmp_path).settings
    assert (shown["path"], shown["rewards"]["domains"][0]["url"]) == ("/data/a@b", "http://***@10.0.0.1:8000/v1")


def test_runs_of_several_seeds_have_names_of_their_own_and_a_group_for_each_setting(tmp_path):
    settings = ["", "loss.name=ppo", "loss.name=" + "x" * 200, "loss.name=" + "x" * 199 + "y"]
    named = [name_and_group(tmp_path / "recipe-seeds" / each / f"seed-{n}") for each in settings for n in range(3)]
    assert [len(set(each)) for each in zip(*named, strict=True)] == [12, 4]
    assert all(0 < len(text) <= 128 for pair in named for text in pair)
    assert named[4] == ("recipe-seeds/loss.name=ppo/seed-1", "recipe-seeds/loss.name=ppo")
    assert name_and_group(tmp_path / "sokoban-3") == ("sokoban-3", "")
