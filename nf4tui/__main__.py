"""`python -m nf4tui`: the command line."""

from nf4tui.cli import main

if __name__ == "__main__":
    main()
