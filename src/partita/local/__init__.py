"""What a client does: its problem, and how it is solved."""
