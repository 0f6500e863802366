"""Reference, teacher and rewards in actors, on a real cluster of two nodes on this machine."""

from __future__ import annotations

import os

import pytest
from rank_runs import SMALL, settings
from ray_cluster import MEMORY, local_cluster, ray, search_path
from tiny_runs import numbers

from rollenv import UsageError
from rollenv.agents.local import LocalAgent
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.trainers.config import load_config
from rollenv.trainers.config.placement import PlacementConfig
from rollenv.trainers.launch import _scaling, train_on_ranks
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.trainer import Trainer

ROLES = [
    "placement.roles.reference={actors=1, cpus=0.25, resources={apart=0.1}}",
    "placement.roles.teacher={actors=1, cpus=0.25, resources={apart=0.1}}",
    "placement.roles.rewards={actors=2, cpus=0.1, resources={apart=0.1}}",
]


@pytest.fixture
def cluster():
    os.environ["PYTHONPATH"] = search_path(__file__)
    with local_cluster(1) as cluster:
        cluster.add_node(num_cpus=1, resources={"apart": 1}, object_store_memory=MEMORY)
        cluster.wait_for_nodes()
        yield cluster


@pytest.fixture
def model(tmp_path):
    tokenizer = build_tokenizer(["up down left right"], 280)
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    size = TinySize(hidden=16, layers=1, heads=2, intermediate=16)
    for seed, place in enumerate((tmp_path / "model", tmp_path / "model" / "teacher")):
        LocalAgent(build_model(size, tokenizer, seed), tokenizer).save(place)
    return tmp_path / "model"


def train(path, model, *overrides, within=lambda trainer: None):
    config = load_config(
        "sokoban",
        [
            *(key for key in SMALL if not key.startswith(("model.size", "model.warm_up"))),
            *(f"model.path={model}", "distill.name=teacher", f"distill.path={model}/teacher", "kl.name=loss"),
            "rewards.domains=[{kind='format', pattern='.*[a-m].*', matched=0.5}]",
            *("iterations=2", f"run_dir={path}", *overrides),
        ],
    )
    run = RunDir.create(config, "sokoban")
    if config.placement.ranks > 1:
        train_on_ranks(config, run, lambda *_: None)
    else:
        with Trainer(config, run) as trainer:
            within(trainer)
            trainer.fit()
    return numbers(path)


@pytest.mark.integration
def test_roles_in_actors_of_another_node_give_the_numbers_of_one_process(cluster, model, tmp_path):
    here = train(tmp_path / "here", model)

    def see_them_apart(trainer):
        assert ray.available_resources()["apart"] == pytest.approx(0.6)
        ray.kill(trainer.state.reference.actor, no_restart=False)  # Ray starts it again

    assert train(tmp_path / "apart", model, *ROLES, within=see_them_apart) == here
    assert here[-1]["added/*"] != 0
    assert here[-1]["teacher_kl"] != 0


@pytest.mark.integration
def test_several_ranks_share_the_models_of_roles(cluster, model, tmp_path):
    ranks = ["placement.ranks=2", "placement.cpus=0.1"]
    here = train(tmp_path / "here", model, *ranks)
    apart = train(tmp_path / "apart", model, *ranks, *ROLES)
    for row, other in zip(here, apart, strict=True):
        assert row == pytest.approx(other, rel=1e-3, abs=1e-5)
    assert here[-1]["teacher_kl"] != 0


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (["placement.roles.critic={actors=1}"], "critic"),
        (["kl.name=loss", "placement.roles.reference.actors=2"], "actor"),
        (["placement.roles.reference.actors=1"], "only with kl"),
        (["placement.roles.teacher.actors=1"], r"distill\.name=teacher"),
        (["placement.roles.rewards.actors=1"], r"rewards\.domains"),
        (["placement.ranks=2", "placement.gpus=0.5"], "gpus"),
    ],
)
def test_roles_that_cannot_be_are_refused(keys, why):
    with pytest.raises(UsageError, match=why):
        settings(*keys)


def test_a_rank_leaves_a_share_of_its_gpu_to_others():
    scaling = _scaling(PlacementConfig(ranks=2, gpus=0.6), gpu=True)
    assert scaling.resources_per_worker == {"CPU": 1.0, "GPU": 0.6}
    assert _scaling(PlacementConfig(ranks=2), gpu=True).resources_per_worker["GPU"] == 1
