"""GEM's constants, and the code that it puts before programs."""

from __future__ import annotations

#: Modules and names of the standard library, and numpy where it is installed. ``datetime`` is the module and ``time``
#: the function, as in GEM; what would hide a built-in function is left out.
BASE_IMPORTS = """\
from typing import *
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from string import *
from copy import deepcopy
from decimal import Decimal
from fractions import Fraction
from math import (
    acos, asin, atan, atan2, ceil, comb, cos, degrees, dist, e, exp, fabs, factorial, floor, fsum, gcd, hypot, inf,
    isclose, isqrt, lcm, log, log2, log10, nan, perm, pi, prod, radians, sin, sqrt, tan, trunc,
)
from operator import add, and_, iand, itemgetter, attrgetter, mul, or_, sub, xor
from os.path import commonprefix
from random import choice, randint, randrange, sample, shuffle
from re import search as re_search
from statistics import mean, median
import bisect, collections, copy, datetime, decimal, fractions, functools, heapq, io, itertools, json, math, operator
import os, queue, random, re, statistics, string, sys
from time import time
try:
    import numpy as np, numpy
except ImportError:
    pass
"""


#: The release of GEM whose names these are.
__version__ = "0.1.0"

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
