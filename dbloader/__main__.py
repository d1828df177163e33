"""``python -m dbloader``: the command line."""

from dbloader.cli import main

if __name__ == "__main__":
    main()
