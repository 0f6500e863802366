"""Gymnasium's toy-text games: Taxi, FrozenLake, CliffWalking, Blackjack."""

from __future__ import annotations

from rollenv.envs.gym.text import GymText, table_policy


class Taxi(GymText):
    """Pick up a passenger and take them to their destination. Success: they arrived.

    The rewards are -1 a move, -10 for a wrong pickup or dropoff, 20 at the destination.
    """

    game_class = "gymnasium.envs.toy_text.taxi:TaxiEnv"
    actions = ("south", "north", "east", "west", "pickup", "dropoff")
    fields = ("s", "fickle_step")
    default_turns = 200
    pass_reward = -1.0
    stands = ("R", "G", "Y", "B")

    def _rules(self) -> str:
        board = "\n".join(row.tobytes().decode() for row in self.game.desc)
        return (
            "You drive a taxi. Pick up the passenger and take them to their destination. This is the map; R, G, Y and "
            f"B are stands, | is a wall, : is an open border:\n{board}\nRows and columns count from 0 at the top left."
        )

    def _describe(self) -> str:
        row, column, passenger, goal = self.game.decode(self.game.s)
        where = "in the taxi" if passenger == 4 else f"at {self._stand(passenger)}"
        return f"The taxi is in row {row}, column {column}. The passenger is {where} and wants to {self._stand(goal)}."

    def _stand(self, index: int) -> str:
        row, column = self.game.locs[index]
        return f"{self.stands[index]} (row {row}, column {column})"

    def _policy(self) -> int:
        return table_policy(self, int(self.game.s))


class GymFrozenLake(GymText):
    """Cross the ice without falling into a hole. Success: the goal is reached; the reward is 1 there, else 0."""

    game_class = "gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv"
    actions = ("left", "down", "right", "up")
    fields = ("s",)
    default_turns = 100

    def _rules(self) -> str:
        board = "\n".join(row.tobytes().decode() for row in self.game.desc)
        slips = any(len(moves) > 1 for row in self.game.P.values() for moves in row.values())
        ice = " It is slippery: you may slide to either side of where you mean to go." if slips else ""
        return (
            f"Cross the ice to the goal.{ice} S is the start, F ice, H a hole, G the goal:\n{board}\n"
            "Rows and columns count from 0 at the top left."
        )

    def _describe(self) -> str:
        row, column = divmod(int(self.game.s), self.game.ncol)
        cell = self.game.desc[row, column].decode()
        on = {"H": ", in a hole", "G": ", on the goal"}.get(cell, "")
        return f"You are in row {row}, column {column}{on}."

    def _success(self, reward: float, terminated: bool) -> bool:
        return terminated and self.game.desc.ravel()[self.game.s] == b"G"

    def _policy(self) -> int:
        return table_policy(self, int(self.game.s))


class CliffWalking(GymText):
    """Walk along a cliff. Success: the goal is reached; -1 a step, -100 and back to the start for falling off."""

    game_class = "gymnasium.envs.toy_text.cliffwalking:CliffWalkingEnv"
    actions = ("up", "right", "down", "left")
    fields = ("s",)
    default_turns = 200
    pass_reward = -1.0

    def _rules(self) -> str:
        return (
            "Walk from row 3, column 0 to row 3, column 11 of a grid of 4 rows and 12 columns; rows and columns count "
            "from 0 at the top left. Row 3, columns 1 to 10, is a cliff: a step onto it puts you back at the start."
        )

    def _describe(self) -> str:
        row, column = divmod(int(self.game.s), 12)
        return f"You are in row {row}, column {column}."

    def _policy(self) -> int:
        return table_policy(self, int(self.game.s))


class Blackjack(GymText):
    """Beat the dealer without going over 21. Success: the hand was won (reward 1; a draw pays 0, a loss -1)."""

    game_class = "gymnasium.envs.toy_text.blackjack:BlackjackEnv"
    actions = ("stand", "hit")
    fields = ("player", "dealer")
    default_turns = 30
    pass_reward = -1 / 30  # all turns passed are a lost hand

    def __init__(self, max_turns: int | None = None, *, natural: bool = False, sab: bool = True):
        super().__init__(max_turns, natural=natural, sab=sab)

    def _rules(self) -> str:
        return (
            "You play blackjack against the dealer: come closer to 21 than they do, and not over it. Aces count 1 or "
            "11, court cards 10. Cards are drawn with replacement; the dealer draws below 17."
        )

    def _describe(self) -> str:
        mine, dealer = (", ".join(map(_card, cards)) for cards in (self.game.player, self.game.dealer[:1]))
        total, soft = hand_value(self.game.player)
        ace = " with an ace as 11" if soft else ""
        return f"You hold {mine}, which makes {total}{ace}. The dealer shows {dealer}."

    def _success(self, reward: float, terminated: bool) -> bool:
        return reward > 0

    def _policy(self) -> int:
        """Play the basic strategy, without doubling or splitting."""
        total, soft = hand_value(self.game.player)
        shown = self.game.dealer[0]
        if soft:
            return int(total < 18 or (total == 18 and shown in (1, 9, 10)))
        if total in range(13, 17):
            return int(shown not in range(2, 7))
        return int(shown not in (4, 5, 6)) if total == 12 else int(total < 12)


def _card(value: int) -> str:
    return "an ace" if value == 1 else str(value)


def hand_value(cards: list[int]) -> tuple[int, bool]:
    """Return the value of a hand, and whether it has an ace that counts 11."""
    total = sum(cards)
    return (total + 10, True) if 1 in cards and total <= 11 else (total, False)
