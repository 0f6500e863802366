"""A task for runs of a second: say the words that are shown. Rewards differ from answer to answer."""

import rollenv

ID = "test:Words-v0"
WORDS = ("up", "down", "left", "right")
#: Overrides of the Sokoban recipe: a run of a second.
RUN = [
    "threads=1", f"env.id={ID}", "env.kwargs={}", "eval.kwargs={}", "model.size.hidden=16", "model.size.layers=1",
    "model.size.heads=2", "model.size.intermediate=16", "model.warm_up.episodes=30", "model.warm_up.batch_size=16",
    "prompt.template='{observation}>'", "rollout.max_new_tokens=3", "optimizer.warmup_iterations=0",
    "checkpoint_every=1", "eval.episodes=4", "eval.every=2",
]  # fmt: skip

#: Those of a run of two iterations that changes the weights.
TRAINED = [
    *RUN, "iterations=2", "keep_checkpoints=2", "model.warm_up.steps=100", "model.warm_up.lr=1e-2",
    "rollout.groups_per_batch=3", "rollout.group_size=3", "optimizer.lr=5e-2", "optimizer.final_lr=1.0",
    "optimizer.minibatch_sequences=4",
]  # fmt: skip


class Words(rollenv.Env):
    """``turns`` words, one after another. A right one pays ``pay``, others what their letters make."""

    reset_options = frozenset({"index", "start"})

    def __init__(self, turns=3, pay=1.0, end=True):
        self.turns, self.pay, self.end = turns, pay, end

    def _reset(self, options):
        self.turn = 0
        self.word = WORDS[options.get("index", options.get("start", self.randint(4)))]
        return self.word, {"suffix": self.word}

    def _step(self, action):
        right = action == self.word
        reward = self.pay if right else 0.1 * (sum(map(ord, action)) % 5)
        self.turn += 1
        self.word = WORDS[self.randint(4)]
        info = {"suffix": self.word, "success": right, "valid": action in WORDS}
        return self.word, reward, self.end and self.turn == self.turns, not self.end and self.turn == self.turns, info

    def oracle_action(self):
        return self.word

    def sample_random_action(self):
        return self.action_rng.choice(WORDS)

    def state_key(self):
        return f"{self.turn} {self.word}"

    def num_tasks(self):
        return len(WORDS)


def ranked(members):
    """Pays for an episode by the number of others that got less."""
    return [float(sum(other.reward < one.reward for other in members)) for one in members]


def letters(answer):
    """Pays for an answer by its length."""
    return float(len(answer))


def measured(player, config):
    """A measure of the model in evaluations: the sum of its weights' absolute values."""
    return {"weight": sum(float(weights.detach().abs().sum()) for weights in player.model.parameters())}
