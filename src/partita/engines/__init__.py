"""Where do clients run?"""

from partita.engines.base import Answer, Engine, Failure, Task
from partita.engines.local import LocalEngine

__all__ = ["Answer", "Engine", "Failure", "LocalEngine", "Task"]
