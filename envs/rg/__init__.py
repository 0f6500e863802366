"""Every data set of reasoning-gym (https://github.com/open-thought/reasoning-gym) as an environment."""

from __future__ import annotations

from typing import Any

from rollenv.core.needs import Package
from rollenv.core.registry import ABILITIES, register

#: The data sets of reasoning-gym 0.1.25.
NAMES = tuple(
    """
    ab acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf binary_alternation
    binary_matrix bitwise_arithmetic boxnet caesar_cipher calendar_arithmetic chain_sum circuit_logic codeio
    coin_flip color_cube_rotation complex_arithmetic composite count_bits count_primes countdown course_schedule
    cryptarithm decimal_arithmetic decimal_chain_sum dice emoji_mystery family_relationships figlet_font
    fraction_simplification futoshiki game_of_life game_of_life_halting gcd graph_color group_anagrams
    gsm_symbolic intermediate_integration isomorphic_strings jugs kakurasu knight_swap knights_knaves
    largest_island lcm leg_counting letter_counting letter_jumble list_functions mahjong_puzzle
    manipulate_matrix maze mini_sudoku modulo_grid n_queens needle_haystack number_filtering number_format
    number_sequence number_sorting palindrome_generation palindrome_partitioning path_star polynomial_equations
    polynomial_multiplication pool_matrix power_function prime_factorization products propositional_logic
    puzzle24 quantum_lock ransom_note rearc rectangle_count rotate_matrix rotten_oranges rubiks_cube rush_hour
    self_reference sentence_reordering shortest_path simple_equations simple_geometry simple_integration sokoban
    spell_backward spiral_matrix string_insertion string_manipulation string_splitting string_synthesis sudoku
    survo syllogism time_intervals tower_of_hanoi tsumego word_ladder word_sequence_reversal word_sorting
    zebra_puzzles
    """.split()  # noqa: SIM905
)

_LEVELS: tuple[dict[str, Any], ...] = tuple({"level": level} for level in range(4))
#: Levels of data sets without a curriculum in reasoning-gym, or whose own levels are invalid.
_OTHER_LEVELS: dict[str, Any] = {
    "acre": (),
    "caesar_cipher": _LEVELS[:2],
    "composite": (),
    "gsm_symbolic": (),
    "jugs": _LEVELS[:2],
    "knight_swap": {"min_nodes": [6], "max_nodes": [6, 8, 9], "min_pieces": [2], "max_pieces": [2]},
    "list_functions": (),
    "modulo_grid": {"level": [0, 2, 3, 4, 5]},
    "survo": _LEVELS[:2],
}


def register_family() -> None:
    """Register ``rg:<name>`` for every data set."""
    for name in NAMES:
        register(
            f"rg:{name}",
            "rollenv.envs.rg.env:ReasoningGymEnv",
            abilities=ABILITIES,
            needs=[Package("reasoning-gym", "envs")],
            # about 6 in 1,000 items have only tautologies as premises, and no answer scores 1
            oracle_success=0.95 if name == "propositional_logic" else 0.99,
            levels=_OTHER_LEVELS.get(name, _LEVELS),
            summary=f"A task of reasoning-gym: {name.replace('_', ' ')}.",
            name=name,
        )
