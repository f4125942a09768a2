"""`python -m coterie`: the command line where no script is installed."""

from coterie._src.cli import entry

if __name__ == "__main__":
    entry()
