"""Run under `mpiexec -n N python -m mpi4py conformance_program.py`: the conformance suite over MPI."""

from msdata_transport import conformance
from msdata_transport.mpi import join

job = join("all")
names = conformance.run(job.endpoint)
job.leave(ok=True)
if job.endpoint.rank == 0:
    print(f"passed {len(names)} checks at {job.endpoint.size} ranks")
