"""A custom schedule: two clients at a time, in a fixed order."""

from partita import Schedule
from partita.errors import SettingsError


class Pairs(Schedule):
    """It is stateless: its selection depends only on the `ScheduleView`."""

    def check(self, clients):
        if clients < 2:
            raise SettingsError("Pairs need at least two clients: use Sequential.")

    def select(self, turns):
        clients = len(turns.busy)
        pair = ((2 * turns.turn + place) % clients for place in range(2))
        return [k for k in pair if not turns.busy[k]]
