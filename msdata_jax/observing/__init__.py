"""What a job is seen to do: figures of its ranks, the folder they are kept in, and what is made of them.

`metrics` counts, `monitor` puts the figures of all ranks together, `files` and `record` keep them, `trace`,
`prometheus` and `tensorboard` hand them on. Who measures is `runtime.observing`.
"""
