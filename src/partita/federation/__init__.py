"""A federation: clients on their own machines, and a server that loses nothing."""
