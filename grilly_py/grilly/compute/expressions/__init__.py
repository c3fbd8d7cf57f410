"""Expressions: functions of scalars as graphs, which are written into the holes of shaders."""
