"""Benchmarks, run by `msdata bench NAME`: one module each, with `run(quick) -> {"name", "rows", ...}`."""
