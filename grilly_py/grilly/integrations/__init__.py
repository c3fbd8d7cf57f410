"""Models built of grilly's layers. Each module says which optional packages it needs."""
