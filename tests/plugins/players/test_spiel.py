"""OpenSpiel's games: what players see, what moves do, how well the oracles play."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollenv
from rollenv.core.errors import NoSuchAbility, UnknownEnv, UsageError

pyspiel = pytest.importorskip("pyspiel", reason="open-spiel is not installed: pip install 'rollenv[players]'")

from rollenv.plugins.players.meters import exploitability_of  # noqa: E402
from rollenv.plugins.players.solve import KUHN  # noqa: E402

GAMES = (
    "kuhn_poker",
    "kuhn_poker(players=3)",
    "tic_tac_toe",
    "leduc_poker",
    "liars_dice",
    "connect_four",
    "goofspiel(num_cards=3)",
    "bargaining",
    "dark_hex(board_size=2)",
)


@pytest.mark.parametrize(
    ("game", "arguments"),
    [("kuhn_poker", {}), ("goofspiel(num_cards=3)", {}), ("tic_tac_toe", {"opening": 3, "tremble": 0.5})],
)
def test_it_keeps_the_contract(game, arguments):
    rollenv.check_env(rollenv.make(f"spiel:{game}", **arguments), episodes=5)


def test_a_trembling_hand_plays_random_legal_moves_of_the_seed():
    """Whatever the players answer, as long as it is a move."""

    def played(seed, pick, tremble):
        env = rollenv.make("spiel:tic_tac_toe", tremble=tremble)
        env.reset(seed)
        over = False
        while not over:
            moves = list(env.unwrapped.moves())
            over = any(env.step(f"\\boxed{{{moves[pick % len(moves)]}}}")[2:4])
        return env.unwrapped.state.history()

    games = [played(seed, 0, 1.0) for seed in range(20)]
    assert games == [played(seed, 5, 1.0) for seed in range(20)]
    assert len({game[0] for game in games}) > 5
    assert played(1, 0, 0.0) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("arguments", [{"tremble": 1.5}, {"tremble": -0.1}, {"opening": -1}])
def test_shares_and_numbers_of_random_moves_are_checked(arguments):
    with pytest.raises(UsageError, match=next(iter(arguments))):
        rollenv.make("spiel:tic_tac_toe", **arguments)


@pytest.mark.parametrize("game", GAMES)
def test_returns_are_openspiels_and_all_are_told_the_end(game):
    env = rollenv.make(f"spiel:{game}")
    for seed in range(5):
        _, info = env.reset(seed)
        totals, over = [0.0] * env.players, False
        while not over:
            mover = info["player"]
            _, reward, over, _, info = env.step(env.sample_random_action())
            assert info["rewards"][mover] == reward
            totals = [total + gain for total, gain in zip(totals, info["rewards"], strict=True)]
        assert totals == pytest.approx(env.unwrapped.state.returns())
        assert all("The game is over" in told for told in info["observations"])
        assert info["success"] == [total > 0 and total == max(totals) for total in totals]


@given(seed=st.integers(0, 2**31), picks=st.lists(st.integers(0, 10), max_size=3))
def test_the_card_of_another_player_is_nowhere(seed, picks):
    env = rollenv.make("spiel:kuhn_poker")
    observation, info = env.reset(seed)
    shown: dict[int, list[str]] = {0: [], 1: []}
    for pick in picks:
        shown[info["player"]].append(observation + str(info.get("brief")))
        observation, _, over, _, info = env.step(["pass", "bet"][pick % 2])
        if over:
            break
    cards = env.unwrapped.state.history()[:2]
    for player, texts in shown.items():
        for text in texts:
            assert f"Your card is {'JQK'[cards[player]]} of J, Q, K." in text
            assert text.rsplit("\n", 1)[-1].split()[-1].startswith(str(cards[player])) or "brief" not in info


def test_deals_follow_the_seed_and_are_fair():
    env = rollenv.make("spiel:kuhn_poker")
    dealt = []
    for seed in range(300):
        env.reset(seed)
        dealt.append(tuple(env.unwrapped.state.history()))
        env.reset(seed)
        assert tuple(env.unwrapped.state.history()) == dealt[-1]
    assert set(dealt) == set(itertools.permutations(range(3), 2))
    assert all(25 < dealt.count(deal) < 80 for deal in set(dealt))


@pytest.mark.parametrize("text", ["Bet", "\\boxed{bet}", " BET\n", "1", "I raise: \\boxed{1}"])
def test_a_move_is_understood(text):
    env = rollenv.make("spiel:kuhn_poker")
    env.reset(0)
    assert env.step(text)[4]["valid"]
    assert env.unwrapped.state.history()[-1] == 1


@pytest.mark.parametrize(("game", "loss"), [("kuhn_poker", -2.0), ("tic_tac_toe", -1.0)])
def test_an_answer_without_a_move_forfeits(game, loss):
    env = rollenv.make(f"spiel:{game}")
    env.reset(0)
    env.step(env.sample_random_action())
    observation, reward, terminated, _, info = env.step("I do not know")
    assert (reward, terminated) == (loss, True)
    assert info["rewards"] == [-loss, loss]
    assert info["success"] == [True, False]
    assert (info["valid"], info["metrics"]) == (False, {"forfeits": 1.0})
    assert "Your last answer was no legal move" in observation


def test_a_state_continues_in_the_middle_of_a_hand():
    env, other = rollenv.make("spiel:leduc_poker"), rollenv.make("spiel:leduc_poker")
    for seed in range(20):
        env.reset(seed)
        env.step("call")
        other.set_state(json.loads(json.dumps(env.get_state())))
        assert env.step("call") == other.step("call")  # the public card is drawn here


def test_a_move_of_hive_that_ends_in_a_backslash_is_read_back():
    env = rollenv.make("spiel:hive")
    env.reset(0)
    for _ in range(4):
        env.step(env.sample_random_action())
    moves = env.unwrapped.moves()
    assert any(name.endswith("\\") for name in moves.values())
    for move in moves:
        assert env.unwrapped.read(f"I take {env.unwrapped.write(move)}.") == move


def test_kuhns_equilibrium_is_one():
    policy = {key: {0: 1 - bet, 1: bet} for key, bet in KUHN.items()}
    assert exploitability_of(pyspiel.load_game("kuhn_poker"), policy) == pytest.approx(0, abs=1e-12)


def test_the_oracle_of_tic_tac_toe_never_loses():
    env = rollenv.make("spiel:tic_tac_toe")
    for seed in range(40):
        _, info = env.reset(seed)
        over = False
        while not over:
            own = info["player"] == seed % 2
            _, _, over, _, info = env.step(env.oracle_action() if own else env.sample_random_action())
        assert not info["success"][1 - seed % 2]


@pytest.mark.parametrize(("game", "has"), [("leduc_poker", True), ("connect_four", False), ("liars_dice", False)])
def test_small_games_have_an_oracle(game, has):
    assert ("oracle" in rollenv.spec(f"spiel:{game}").abilities) == has


def test_a_larger_game_by_arguments_has_none():
    env = rollenv.make("spiel:kuhn_poker", players=3)
    env.reset(0)
    assert env.players == 3
    with pytest.raises(NoSuchAbility, match="no oracle"):
        env.oracle_action()


@pytest.mark.parametrize(
    ("game", "error", "fact"),
    [
        ("kuhn_pokr", UnknownEnv, "kuhn_poker"),
        ("kuhn_poker(players=99)", UsageError, "players"),
        ("kuhn_poker(((", UsageError, "bracket"),
        ("catch", UsageError, "one player"),
        ("negotiation", UsageError, "chance"),
        ("nfg_game(filename=/etc/hosts)", UsageError, "file"),
        ("misere(game=efg_game(filename=/etc/hosts))", UsageError, "file"),
    ],
)
def test_what_cannot_be_played_is_refused(game, error, fact):
    with pytest.raises(error, match=fact):
        rollenv.make(f"spiel:{game}")


def test_an_unknown_parameter_is_said_once(capfd):
    for game in ("tic_tac_toe", "kuhn_poker(players=3)"):
        with pytest.raises(UsageError, match="split"):
            rollenv.make(f"spiel:{game}", split="train")
    assert capfd.readouterr() == ("", "")
