"""Names that a program may use without an import where GEM runs it a second time."""

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
