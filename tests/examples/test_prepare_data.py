import io
import json
import tarfile
from pathlib import Path

import demo_sources
import prepare_data
import pytest
from array_record.python.array_record_module import ArrayRecordReader
from demo_sources import Record
from PIL import Image
from pyarrow import parquet


def records(count: int) -> list[Record]:
    return [
        Record(key=f"page/{n}.x", fields={"text": f"{n} äöü " + "word " * (10 + 7 * n)}) for n in range(count)
    ]


def test_choice_ignores_the_order_of_reading() -> None:
    forward, backward = records(50), records(50)[::-1]
    assert prepare_data.choose(forward, 3000) == prepare_data.choose(backward, 3000)


def test_choice_keeps_to_its_budget_and_leaves_tiny_texts_out() -> None:
    chosen = prepare_data.choose([*records(50), Record(key="tiny", fields={"text": "tiny"})], 3000)
    assert 0 < sum(record.num_bytes for record in chosen) <= 3000
    assert len(prepare_data.choose([Record(key="tiny", fields={"text": "tiny"})], None)) == 0


def read_jsonl(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def read_array_record(path: Path) -> list[str]:
    reader = ArrayRecordReader(str(path))
    texts = [content.decode() for content in reader.read(list(range(reader.num_records())))]
    reader.close()
    return texts


def read_tar(path: Path) -> list[str]:
    with tarfile.open(path) as archive:
        assert all(name.count(".") == 1 for name in archive.getnames())
        return [archive.extractfile(member).read().decode() for member in archive]


READERS = {
    "JSONL": read_jsonl,
    "Parquet": lambda path: parquet.read_table(path)["text"].to_pylist(),
    "ArrayRecord": read_array_record,
    "WebDataset": read_tar,
}


@pytest.mark.parametrize("name", prepare_data.FORMATS)
def test_every_format_gives_back_what_was_written(name: str, tmp_path: Path) -> None:
    suffix, write = prepare_data.FORMATS[name]
    first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
    write(records(70), first)
    write(records(70), second)
    assert READERS[name](first) == [record.fields["text"] for record in records(70)]
    assert first.read_bytes() == second.read_bytes()


def test_views_of_a_photo_are_the_same_every_time_and_within_bounds() -> None:
    packed = io.BytesIO()
    Image.linear_gradient("L").resize((900, 600)).convert("RGB").save(packed, "JPEG")
    views = list(demo_sources.photo_views("A photo-1", packed.getvalue()))
    assert views == list(demo_sources.photo_views("A photo-1", packed.getvalue()))
    assert len(views) == demo_sources.PHOTO_VIEWS
    sides = [max(Image.open(io.BytesIO(view.fields["jpg"])).size) for view in views]
    assert all(32 <= side <= demo_sources.PHOTO_SIDE_PX[1] for side in sides)
    assert views[0].fields["txt"] == "A photo 1"


def test_stamp_caption_takes_the_languages_that_are_there() -> None:
    assert (
        demo_sources.stamp_caption("A frog.\nde.utf8=Ein Frosch.\nxx.utf8=?\n") == "A frog.\nde: Ein Frosch."
    )
    assert demo_sources.stamp_caption("") == ""


def test_another_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(prepare_data.PackageError, match=r"not empty and has no manifest\.json"):
        prepare_data.prepare(tmp_path, tmp_path / "debs")


def test_prepared_data_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"prepared_by": prepare_data.fingerprint()}))
    prepare_data.prepare(tmp_path, tmp_path / "debs")
    assert "is prepared already" in capsys.readouterr().out


def test_tokenizer_reads_back_what_it_writes(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    path = tmp_path / "tokenizer.json"
    prepare_data.train_tokenizer([record.fields["text"] for record in records(20)], path)
    tokenizer = Tokenizer.from_file(str(path))
    text = "0 äöü word 日本"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.token_to_id(prepare_data.END_OF_TEXT) == 0
