"""Where do clients run?"""

from partita.engines.base import Answer, Engine, EventLog, Failure, Task
from partita.engines.local import LocalEngine

__all__ = ["Answer", "Engine", "EventLog", "Failure", "LocalEngine", "Task"]
