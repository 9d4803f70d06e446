import os
import subprocess
import sys
import threading

import grain
import numpy as np
import pytest

from msdata_jax.errors import SourceError
from msdata_jax.sources.memory import MemoryRecords
from msdata_jax.sources.protocol import BadRecord


class Batched:
    def __init__(self, n):
        self.n = n
        self.asked = []

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if index == 3:
            raise OSError("sector 3")
        return {"n": index}

    def __getitems__(self, indices):
        self.asked.append(list(indices))
        return [self[index] for index in indices]


def test_reads_in_batches_where_it_can():
    data = Batched(9)
    records = MemoryRecords(data)
    assert len(records) == 9
    assert records.read(np.array([5, 2, 5])) == [{"n": 5}, {"n": 2}, {"n": 5}]
    assert data.asked == [[5, 2, 5]]


def test_one_bad_record_does_not_spoil_the_batch():
    found = MemoryRecords(Batched(9)).read(np.arange(5))
    assert found[3] == BadRecord("Batched[3]: OSError: sector 3")
    assert [record for record in found if not isinstance(record, BadRecord)] == [
        {"n": n} for n in (0, 1, 2, 4)
    ]


@pytest.mark.parametrize(
    "data", [["a", "b"], ({"n": 1}, {"n": 2}), np.arange(2), grain.sources.RangeDataSource(0, 4, 2)]
)
def test_sequences_are_datasets(data):
    records = MemoryRecords(data)
    assert len(records) == 2
    assert not records.counts_epochs
    assert records.read(np.array([1, 0]))[1] == data[0]
    assert records.fingerprint() == f"{type(data).__qualname__}:2"


def test_arrayrecord_data_source(tmp_path, helpers):
    docs = helpers.make_docs(10)
    path = helpers.write_arrayrecord(tmp_path / "a.array_record", docs)
    with grain.sources.ArrayRecordDataSource(path) as data:
        assert MemoryRecords(data).read(np.array([7, 1])) == [docs[7].encode(), docs[1].encode()]


def test_a_map_dataset_counts_epochs_itself():
    dataset = (
        grain.MapDataset.range(20).seed(3).shuffle().map(lambda n: {"n": n}).filter(lambda e: e["n"] % 5)
    )
    records = MemoryRecords(dataset)
    assert records.counts_epochs
    found = records.read(np.arange(40))
    assert found == [dataset[index] for index in range(40)]
    assert found[:20] != found[20:]
    assert found.count(None) == 8


def test_threads_read_a_map_dataset():
    dataset = grain.MapDataset.range(200).seed(3).shuffle().map(lambda n: {"n": n})
    records = MemoryRecords(dataset)
    expected = [dataset[index] for index in range(200)]
    found = {}
    threads = [
        threading.Thread(target=lambda i=i: found.update({i: records.read(np.arange(200))})) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert found == dict.fromkeys(range(4), expected)


def test_refuses_what_has_no_random_access():
    with pytest.raises(SourceError, match="random-access"):
        MemoryRecords(iter([1, 2]))
    with pytest.raises(SourceError, match="MapDataset rather than an IterDataset"):
        MemoryRecords(grain.MapDataset.range(3).to_iter_dataset())
    with pytest.raises(SourceError, match=r"leave \.repeat\(\) out"):
        MemoryRecords(grain.MapDataset.range(3).repeat())


def run_python(code):
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    environment.pop("PYTHONPATH", None)
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )


def test_importing_sources_loads_no_heavy_library():
    heavy = ["jax", "grain", "torch", "mpi4py", "pyarrow", "PIL", "array_record"]
    heavy += ["tokenizers", "tiktoken", "sentencepiece"]
    done = run_python(
        f"import sys, msdata_jax.sources; print([name for name in {heavy} if name in sys.modules])"
    )
    assert done.stdout == "[]\n", done.stderr


def test_grain_works_without_jax():
    done = run_python(
        "import sys\n"
        "from msdata_jax.sources import block_jax, import_grain_without_jax\n"
        "assert block_jax()\n"
        "grain = import_grain_without_jax()\n"
        "from msdata_jax.sources.memory import MemoryRecords\n"
        "import numpy as np\n"
        "records = MemoryRecords(grain.MapDataset.range(5).map(lambda n: {'n': n}))\n"
        "print(records.read(np.array([7, 1])))\n"
        "print([name for name in sys.modules if name.startswith('jax') and sys.modules[name]])"
    )
    assert done.stdout == "[{'n': 2}, {'n': 1}]\n[]\n", done.stderr


def test_block_jax_says_when_it_is_too_late():
    done = run_python(
        "import sys, types; sys.modules['jax'] = types\n"
        "from msdata_jax.sources import block_jax; print(block_jax())"
    )
    assert done.stdout == "False\n", done.stderr
