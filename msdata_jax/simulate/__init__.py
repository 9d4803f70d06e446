"""The planner on simulated clusters: length distributions, a pipeline model, and a memory model."""
