"""What every operation stands on: tensors, dtypes, dispatches, and how work is cut to a device's limits."""
