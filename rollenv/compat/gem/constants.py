"""GEM's constants, and the code that it puts before programs."""

from __future__ import annotations

from rollenv.compat.gem.imports import BASE_IMPORTS

#: The release of GEM whose names these are.
__version__ = "0.1.0"

__all__ = ["BASE_IMPORTS", "BASE_LEETCODE_IMPORTS", "INVALID_ACTION", "TERMINAL_STATE", "LanguageGameReward"]

TERMINAL_STATE = "<｜TERMINAL_STATE｜>"
INVALID_ACTION = "<｜INVALID_ACTION｜>"


class LanguageGameReward:
    """The rewards that GEM's games share."""

    success_reward: float = 1.0
    internal_step_reward: float = 0.0
    fail_reward: float = 0.0
    invalid_action_reward: float = 0.0
    format_error_reward: float = -0.1


#: The nodes of lists and trees that LeetCode's problems speak of.
BASE_LEETCODE_IMPORTS = '''
class ListNode:
    def __init__(self, val=0, next=None):
        self.val, self.next = val, next


def list_node(values):
    node = None
    for value in reversed(values):
        node = ListNode(value, node)
    return node


def is_same_list(l1, l2):
    while l1 and l2 and l1.val == l2.val:
        l1, l2 = l1.next, l2.next
    return l1 is None and l2 is None


class TreeNode:
    def __init__(self, val=0, left=None, right=None):
        self.val, self.left, self.right = val, left, right


def tree_node(values):
    """A tree from its levels; None stands for a child that is missing."""
    rest = iter(values)
    first = next(rest, None)
    root = None if first is None else TreeNode(first)
    level = [root] if root else []
    for node in level:
        for side in ("left", "right"):
            value = next(rest, None)
            if value is not None:
                setattr(node, side, TreeNode(value))
                level.append(getattr(node, side))
    return root


def is_same_tree(p, q):
    if p is None or q is None:
        return p is q
    return p.val == q.val and is_same_tree(p.left, q.left) and is_same_tree(p.right, q.right)
'''
