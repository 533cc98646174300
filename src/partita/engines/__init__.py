"""Where do clients run?"""

from partita.engines.local import LocalEngine, Task

__all__ = ["LocalEngine", "Task"]
