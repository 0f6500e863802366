"""``python -m rollenv`` is the command ``rollenv``."""

from rollenv.cli.main import main

if __name__ == "__main__":
    main()
