"""Other loaders beside ours: the same records, the same work, the same phases, each loader's own reading.

`data` writes the records, `work` is what every loader does with them, `ours` and `*_loader` are one adapter
each, `rank` is a training process that runs any of them, `runs` starts such processes and measures.
"""
