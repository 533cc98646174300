"""A fake of Flower's link, with the real apps of server and clients in one process."""

import itertools

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from partita.federation.apps import client_app, server_app


class FakeGrid(Grid):
    """Passes every message to the client's app at once, and stores the answer until it is pulled."""

    def __init__(self, nodes):
        self.nodes = {node: Context(1, node, about, RecordDict(), {}) for node, about in enumerate(nodes, start=1)}
        self.answers, self.pushed = {}, []
        self._ids = itertools.count()

    def set_run(self, run):
        pass

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *arguments, **settings):
        raise NotImplementedError

    def send_and_receive(self, *arguments, **settings):
        raise NotImplementedError

    def get_nodes(self):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        for message in messages:
            identity = f"message {next(self._ids)}"
            message.metadata.__dict__["_message_id"] = identity
            self.pushed.append(message)
            self.answers[identity] = client_app(message, self.nodes[message.metadata.dst_node_id])
            yield identity

    def pull_messages(self, message_ids):
        return [self.answers.pop(identity) for identity in list(message_ids) if identity in self.answers]


def serve(folder, files):
    """Runs the server's app on a federation whose clients have these files; returns the fake link."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 0, 1, 0
    about = [{"client": name, "folder": str(folder), "data": str(path)} for name, path in files.items()]
    grid = FakeGrid(about)
    server_app(grid, Context(1, 0, {}, RecordDict(), {"folder": str(folder)}))
    return grid
