"""`python -m partita`."""

from partita.cli import main

if __name__ == "__main__":
    main()
