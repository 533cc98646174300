"""A custom engine: clients in this process, which compute an answer only when it is requested."""

from partita.engines import Answer, Engine, LocalEngine


class Lazy(Engine):
    """Between `submit` and `next` anything may happen, such as messages to other machines."""

    def __init__(self, partition):
        self.clients, self.tasks = LocalEngine(partition), {}

    @property
    def names(self):
        return self.clients.names

    def away(self, names):
        return self.clients.away(names)

    def check(self, recipe, prior):
        self.clients.check(recipe, prior)

    def bind(self, recipe, prior):
        self.clients.bind(recipe, prior)

    def submit(self, task):
        self.tasks.setdefault(task.id, task)

    def cancel(self, task):
        self.tasks.pop(task, None)

    def next(self, timeout=float("inf")):
        task = self.tasks.pop(next(iter(self.tasks), None), None)
        return task and Answer(task.id, self.clients.answer(task), self.now())

    def ell(self, q, key, without=(), hyper=None):
        return self.clients.ell(q, key, without, hyper)

    def estimate(self, q, key, without=(), hyper=None):
        return self.clients.estimate(q, key, without, hyper)

    def now(self):
        return self.clients.now()

    def notify(self, task, refusal):
        """A remote engine would send the client the reason of the refusal."""
