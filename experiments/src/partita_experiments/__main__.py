"""`python -m partita_experiments`."""

from partita_experiments.cli import main

if __name__ == "__main__":
    main()
