"""Gymnasium's classic control: CartPole, MountainCar, Acrobot, Pendulum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rollenv.core.errors import UsageError
from rollenv.envs.gym.text import GymText


class CartPole(GymText):
    """Balance a pole on a cart. Success: it is still up at the turn limit; the reward is 1 a turn."""

    game_class = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
    actions = ("left", "right")
    fields = ("state",)
    default_turns = 500

    def _rules(self) -> str:
        return (
            "A pole stands on a cart. Push the cart left or right so that the pole stays up: it must not lean more "
            "than 0.2095 rad, nor the cart leave -2.4 to 2.4 m. A turn is 0.02 s, and every push has 10 N."
        )

    def _describe(self) -> str:
        x, speed, angle, spin = self.game.state
        return (
            f"The cart is at {x:+.4f} m and moves at {speed:+.4f} m/s. The pole leans {angle:+.4f} rad (right is "
            f"positive) and turns at {spin:+.4f} rad/s."
        )

    def _success(self, reward: float, terminated: bool) -> bool:
        return not terminated

    def _policy(self) -> int:
        """Return the action of a linear feedback towards the middle."""
        x, speed, angle, spin = self.game.state
        return int(0.05 * x + 0.15 * speed + angle + 0.3 * spin > 0)


class MountainCar(GymText):
    """Drive a weak car up a hill. Success: the flag is reached; the reward is -1 a turn."""

    game_class = "gymnasium.envs.classic_control.mountain_car:MountainCarEnv"
    actions = ("left", "coast", "right")
    fields = ("state",)
    default_turns = 200
    pass_reward = -1.0

    def _rules(self) -> str:
        return (
            "A car stands in a valley between two hills and is too weak to drive straight up. Gain height on both "
            "sides until you reach the flag at position 0.5. The bottom is at -0.52, the left border at -1.2."
        )

    def _describe(self) -> str:
        position, speed = self.game.state
        return f"The car is at position {position:+.4f} and moves by {speed:+.4f} a turn."

    def _policy(self) -> int:
        """Push in the direction of motion."""
        return 2 if self.game.state[1] >= 0 else 0


class Acrobot(GymText):
    """Swing a two-link arm up. Success: its tip passes the bar; the reward is -1 a turn, 0 for the last."""

    game_class = "gymnasium.envs.classic_control.acrobot:AcrobotEnv"
    actions = ("negative", "none", "positive")
    fields = ("state",)
    default_turns = 500
    pass_reward = -1.0

    def _rules(self) -> str:
        return (
            "Two links of 1 m hang from a joint; you apply a torque of -1, 0 or 1 N m at the joint between them. Swing "
            "the tip more than 1 m above the upper joint. Angles are 0 when a link hangs straight."
        )

    def _describe(self) -> str:
        first, second, spin_1, spin_2 = self.game.state
        tip = -math.cos(first) - math.cos(first + second)
        return (
            f"The first link is at {first:+.4f} rad and turns at {spin_1:+.4f} rad/s; the second, measured from the "
            f"first, is at {second:+.4f} rad and turns at {spin_2:+.4f} rad/s. The tip is at height {tip:+.4f} m."
        )

    def _policy(self) -> int:
        """Add energy: a torque in the second joint's direction of rotation does positive work."""
        return 2 if self.game.state[3] >= 0 else 0


class Pendulum(GymText):
    """Swing a pendulum up and hold it. Success: within 0.25 rad of upright through the last 20 turns.

    The reward is Gymnasium's: minus angle squared, a tenth of the speed squared and a thousandth of the torque squared.

    Args:
        torques: number of torques to choose from, between -2 and 2 N m.
    """

    game_class = "gymnasium.envs.classic_control.pendulum:PendulumEnv"
    fields = ("state",)
    default_turns = 200
    pass_reward = -(np.pi**2 + 0.1 * 8**2 + 0.001 * 2**2)  # the worst: hanging down, at full speed and torque
    upright, hold = 0.25, 20

    def __init__(self, torques: int = 9, max_turns: int | None = None, **settings: Any):
        if torques < 2:
            raise UsageError(f"torques must be at least 2, got {torques}")
        self.torques = np.linspace(-2.0, 2.0, torques)
        self.actions = tuple(f"{torque:g}" for torque in self.torques)
        self.held = 0
        super().__init__(max_turns, **settings)

    def _rules(self) -> str:
        return (
            "A rod of 1 m and 1 kg hangs from a joint; you apply a torque in N m. Swing it upright and hold it there: "
            "the angle is 0 when it is upright, and positive torque turns it to positive angles. A turn is 0.05 s."
        )

    def _describe(self) -> str:
        return f"The angle is {self._angle():+.4f} rad and changes by {self.game.state[1]:+.4f} rad/s."

    def _angle(self) -> float:
        return float((self.game.state[0] + math.pi) % (2 * math.pi) - math.pi)

    def _game_action(self, index: int) -> Any:
        return self.torques[index : index + 1]

    def _reset(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self.held = 0
        return super()._reset(options)

    def _moved(self) -> None:
        self.held = self.held + 1 if abs(self._angle()) < self.upright else 0

    def _success(self, reward: float, terminated: bool) -> bool:
        return self.held >= self.hold

    def _policy(self) -> int:
        """Stabilise by feedback near the top, else add energy."""
        angle, speed = self._angle(), float(self.game.state[1])
        energy = speed * speed / 6 + self.game.g * (math.cos(angle) - 1) / 2
        wanted = (
            -10 * angle - 2.5 * speed if abs(angle) < 0.6 and abs(speed) < 4 else -3 * energy * math.copysign(1, speed)
        )
        return int(np.abs(self.torques - wanted).argmin())

    def _get_state(self) -> dict[str, Any]:
        return super()._get_state() | {"held": self.held}

    def _set_state(self, state: dict[str, Any]) -> None:
        super()._set_state(state)
        self.held = state["held"]
