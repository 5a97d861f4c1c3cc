"""`python -m reinlm.cli`: the command line where no script is installed."""

from reinlm.cli import main

if __name__ == "__main__":
    main()
