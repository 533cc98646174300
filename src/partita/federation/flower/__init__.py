"""The fleet calls of Flower, between a client and a server of one process each. Only this package knows Flower."""
