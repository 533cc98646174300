"""What every command does that computes: double precision, and compiled programs from where they are kept."""

import sys

import jax

from partita.errors import InputError
from partita.io.programs import keep_programs, programs_folder

__all__ = ["begin"]


def begin() -> None:
    """Sets JAX up for a command. Where programs cannot be kept, they are compiled."""
    jax.config.update("jax_enable_x64", True)
    folder = programs_folder()
    if folder is not None:
        try:
            keep_programs(folder)
        except InputError as error:
            print(f"Compiled programs are not cached. {error}", file=sys.stderr)
        except OSError:
            return
