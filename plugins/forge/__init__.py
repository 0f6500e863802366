"""The forge: repair tasks as Harbor folders, made from packages that carry their tests, or from rows of SWE-bench.

>>> from rollenv.plugins.forge.forge import forge
>>> forge(["boltons==25.0.0", "toolz-1.0.0.tar.gz"], "tasks", count=50)  # doctest: +SKIP

A fault is put into a package's library (:mod:`~rollenv.plugins.forge.operators`), and the package's own tests show
what it breaks (:mod:`~rollenv.plugins.forge.judge`). The method is SWE-smith's (arXiv 2504.21798), without Docker or a
model.
"""
