"""What the server does: whose turn it is, what becomes of answers, and when a run ends."""
