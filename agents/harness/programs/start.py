"""Runs a module or a file with the packages of a folder: ``start.py FOLDER MODULE|FILE.py WORDS``.

The packages are only on this interpreter's path, not on that of commands that a harness runs.
"""

import os
import runpy
import site
import sys

folder, name, *words = sys.argv[1:]
packages = f"{folder}/python{sys.version_info[0]}.{sys.version_info[1]}"
if not os.path.isdir(packages):
    has = ", ".join(each for each in sorted(os.listdir(folder)) if each.startswith("python")) or "no Python"
    sys.exit(f"the machine has Python {sys.version.split()[0]}, and {folder} was installed for {has}")
others, sys.path = sys.path, []
site.addsitedir(packages)
sys.path += others
sys.argv = [name, *words]
if name.endswith(".py"):
    sys.path.append(os.path.dirname(name))
    runpy.run_path(name, run_name="__main__")
else:
    runpy.run_module(name, run_name="__main__", alter_sys=True)
