"""Where runs are kept: a checkpoint file, or a ledger."""
