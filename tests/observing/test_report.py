"""Reports: what they say is what happened, whatever the record holds, and the page loads nothing."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from observing.made_lines import STEPS, MadeJob, write_record

import msdata_jax as msd
from msdata_jax.errors import MSDataError
from msdata_jax.observing.record import RunRecord
from msdata_jax.observing.report import RunFigures, make_page, read_figures, summarise
from msdata_jax.observing.report import figures as figures_module
from msdata_jax.observing.report.charts import make_charts, marks, time_axis
from msdata_jax.observing.report.tables import MOST_ROWS

EVIL = '</script><script>alert("x")</script><img src=http://evil.example onerror=alert(1)>'


class Elements(HTMLParser):
    """What a browser would see: elements with attributes, scripts, and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script":
            attributes, so_far = self.scripts[-1]
            self.scripts[-1] = attributes, so_far + data
        else:
            self.text += data

    def tags(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]

    @property
    def values(self) -> dict[str, Any]:
        """What the charts are drawn of."""
        return json.loads(self.scripts[0][1])


def decided(step: int, why: str = "it keeps 2 threads busy") -> dict[str, Any]:
    """A line of `decisions.jsonl`."""
    decision = {"kind": "widen", "loader": 1, "source": 0, "threads": 0, "why": why}
    return {"seconds": step / STEPS, "step": step, "decisions": [decision], "note": "", "memory": {}}


def alarm(event: str, seconds: float, source: str = "a") -> dict[str, Any]:
    """A line of `alarms.jsonl`."""
    text = f"data wait 14 % of the last 10 s: steps lack samples of '{source}'"
    return {
        "event": event, "seconds": seconds, "step": int(STEPS * seconds), "data_wait": 0.14,
        "kind": "threads", "source": source, "ranks": [1], "text": text,
    }  # fmt: skip


def figures_of(folder: Path) -> RunFigures:
    return read_figures(RunRecord(folder))


@pytest.fixture(scope="module")
def swinging(tmp_path_factory: pytest.TempPathFactory) -> RunFigures:
    """A job of a minute that waits from second 20 to 40, lost a rank, and had bad samples from second 30."""
    job = MadeJob()
    lines = []
    for second in range(60):
        if second == 29:
            job.bad["b"] = 7
            job.lost.append({"rank": 2, "why": "killed by signal 9"})
        waits = 20 <= second < 40
        lines.append(job.second(wait=0.3 if waits else 0.0, lacking="a" if waits else None))
    job.ended = True
    lines.append({**job.line(0.0, None), "seconds": 60.02})
    folder = tmp_path_factory.mktemp("swinging") / "record"
    alarms = [alarm("began", 23.0), alarm("over", 45.0)]
    write_record(folder, job, lines, decisions=[decided(210)], alarms=alarms)
    return figures_of(folder)


def test_made_lines_are_as_those_of_a_job(tmp_path: Path) -> None:
    """What all other tests here rest on."""
    records = [{"tokens": np.full(8, index, np.int32)} for index in range(100)]
    recipe = msd.Recipe(
        sources={"a": msd.Source(records), "b": msd.Source(records)},
        strategy=msd.DGraph().mix({"a": 1, "b": 1}).pack(seq_len=16, rows=4),
    )
    with msd.DataLoader(recipe, num_steps=20, num_loaders=2, record=tmp_path / "record") as loader:
        for _ in loader:
            pass
    record = RunRecord(tmp_path / "record")
    *_, real = record.lines()
    made = MadeJob().second(lacking="a")
    assert set(made) == set(real)
    assert set(made["status"]) == set(real["status"])
    assert set(made["status"]["sources"]) == set(real["status"]["sources"])
    assert set(made["status"]["totals"]) == set(real["status"]["totals"])
    assert set(made["sources"]) == set(real["sources"])
    assert set(made["ranks"]["1"]) == set(real["ranks"]["1"])
    assert set(made["status"]["loaders"]["1"]) == set(real["status"]["loaders"]["1"])
    assert set(MadeJob().about()) == set(record.about)
    told = summarise(read_figures(record))
    assert told["steps"] == 20
    assert told["verdict"][0].startswith("The job took all its 20 steps in ")
    assert "20" in Elements(make_page(read_figures(record))).text


def test_the_verdict_says_what_was_waited_for_who_was_lost_and_how_even_work_was(
    swinging: RunFigures,
) -> None:
    how, waits, lost, balance = summarise(swinging)["verdict"]
    assert how == "The job took 600 steps in 60.0 s, 10 steps/s, and its training script ended it there."
    assert waits == (
        "Training waited for data 10 % of the time, for samples of “a”: its loaders had no thread to spare."
    )
    assert lost == "It went on without rank 2 (killed by signal 9)."
    assert balance == (
        "Work was even: the busiest data-parallel rank did 1.02 times the mean, and would have done 1.40 "
        "times as much without balancing."
    )


def test_charts_show_when_what_happened(swinging: RunFigures) -> None:
    charts, axis = make_charts(swinging), time_axis(swinging)
    seconds = np.array(axis["x"])
    assert axis["unit"] == "s"
    (wait,) = charts["wait"]["series"]
    values = np.array([np.nan if each is None else each for each in wait["y"]])
    assert np.allclose(values[(seconds > 20) & (seconds <= 40)], 30, atol=0.1)
    assert np.nanmax(values[(seconds <= 20) | (seconds > 41)]) == 0
    rate = [each for each in charts["pace"]["series"][0]["y"] if each is not None]
    assert np.allclose(rate, STEPS, rtol=0.05)  # the two last lines came at once, and are one point
    marked = marks(swinging)
    assert [each["x"] for each in marked["decisions"]] == [21.0]
    assert [(each["begin"], each["end"]) for each in marked["alarms"]] == [(23.0, 45.0)]
    shares = np.array([each["y"] for each in charts["mixture"]["series"]])
    assert np.allclose(shares.sum(axis=0), 100, atol=0.01)
    read, transforms = charts["loader_time"]["series"]
    assert np.allclose(read["y"], 60 * 0.01)
    assert np.allclose(transforms["y"], 60 * 0.05)
    assert charts["peers"]["unit"] == "MB"
    assert charts["peers"]["values"][1][0] == 60
    for chart in charts.values():
        points = len(axis["x"]) - chart.get("first", 0)
        if chart["kind"] in ("lines", "area"):
            assert all(len(each["y"]) <= points for each in chart["series"]), chart["id"]


def test_tables_show_sources_decisions_bad_samples_and_lost_ranks(swinging: RunFigures) -> None:
    text = Elements(make_page(swinging)).text
    for expected in (
        "loader rank 1 reads “a”, too", "it keeps 2 threads busy", "lost: killed by signal 9",
        "first seen after",
        "30.0 s", "steps lack samples of 'a'", "handing a message to the transport",
    ):  # fmt: skip
        assert expected in text, expected


def test_a_page_loads_nothing_and_runs_no_script_but_its_own(swinging: RunFigures) -> None:
    page = Elements(make_page(swinging))
    for tag, attributes in page.elements:
        assert not {"src", "srcset", "data", "poster", "action", "background"} & set(attributes), tag
        assert (attributes.get("href") or "#").startswith("#"), attributes
        assert tag not in ("link", "iframe", "object", "embed", "base", "form"), tag
    assert "@import" not in page.text
    (policy,) = [
        each["content"] or ""
        for each in page.tags("meta")
        if each.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src" not in policy  # so that it is none
    assert not re.search(r"https?:|\*|unsafe-eval|script-src[^;]*unsafe-inline", policy)
    values, *scripts = page.scripts
    assert values[0] == {"type": "application/json", "id": "charts"}
    for _, script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert len(scripts) == 2
    assert "http" not in re.sub(r"https?://www\.w3\.org\S*", "", scripts[1][1])


def test_names_and_texts_of_a_record_are_never_markup(tmp_path: Path) -> None:
    job = MadeJob(sources=(EVIL, "b"))
    job.bad[EVIL] = 3
    job.lost.append({"rank": 2, "why": EVIL})
    lines = [job.second(wait=0.3, lacking=EVIL) for _ in range(9)]
    for line in lines:
        for rank in line["ranks"].values():
            rank["host"] = EVIL
    about_job = job.about()
    job.about = lambda: {  # type: ignore[method-assign]
        **about_job, "strategy": EVIL, "recipe": EVIL, "python": EVIL,
        "sources": [{"name": EVIL, "data": EVIL}, {"name": "b", "data": "b"}],
    }  # fmt: skip
    folder = write_record(
        tmp_path / "record", job, lines, decisions=[decided(5, EVIL)], alarms=[alarm("began", 5, EVIL)]
    )
    page = Elements(make_page(figures_of(folder)))
    assert not page.tags("img")
    assert len(page.scripts) == 3
    assert page.text.count("alert(1)") >= 6
    assert "alert" not in page.scripts[2][1]
    labels = page.values["charts"]["loader_time"]["labels"]
    assert all("<" not in label for label in labels)  # plotly.js takes some markup for such
    assert "<" not in page.values["marks"]["alarms"][0]["text"]


def test_a_record_of_many_sources_and_ranks_stays_readable(tmp_path: Path) -> None:
    job = MadeJob(sources=[f"source {index}" for index in range(306)], loaders=40, trainers=59)
    folder = write_record(tmp_path / "record", job, [job.second() for _ in range(5)])
    figures = figures_of(folder)
    charts = make_charts(figures)
    assert len(charts["mixture"]["series"]) == 9
    assert charts["mixture"]["series"][-1]["name"] == "298 others"
    assert len(charts["loader_time"]["labels"]) == 21
    assert len(charts["buffers"]["series"]) == 9
    assert len(charts["memory"]["series"]) == 5
    assert len(charts["peers"]["values"]) == 100
    assert np.allclose(sum(np.array(each["y"]) for each in charts["mixture"]["series"]), 100, atol=0.1)
    page = Elements(make_page(figures))
    assert len(page.tags("tr")) < 2 * MOST_ROWS
    assert "source 305" in page.text
    assert "40 loaders, 59 trainers" in page.text


def test_a_long_run_is_thinned_and_its_rates_stay_right(tmp_path: Path) -> None:
    job = MadeJob()
    lines = [job.second(wait=0.1, lacking="a") for _ in range(3001)]
    figures = figures_of(write_record(tmp_path / "record", job, lines))
    assert figures_module.MOST_POINTS / 2 < len(figures.points) <= figures_module.MOST_POINTS + 1
    assert figures.points[-1].steps == STEPS * 3001
    (wait,) = make_charts(figures)["wait"]["series"]
    assert np.allclose([each for each in wait["y"] if each is not None], 10, atol=0.01)
    assert time_axis(figures)["unit"] == "min"


@pytest.mark.parametrize("seconds", [1, 2, 3])
def test_a_run_of_some_seconds_has_a_page(tmp_path: Path, seconds: int) -> None:
    job = MadeJob()
    folder = write_record(tmp_path / "record", job, [job.second() for _ in range(seconds)])
    page = Elements(make_page(figures_of(folder)))
    assert f"The record ends behind {STEPS * seconds} steps of 10,000" in page.text
    assert "it goes on, or it failed or was killed" in page.text
    assert page.text.count("None: ") == 3  # alarms, bad samples, decisions


def test_a_job_that_took_no_step_says_what_was_missing(tmp_path: Path) -> None:
    job = MadeJob()
    line = job.line(0.0, None)
    line["status"] |= {
        "data_wait": None,
        "recent": None,
        "wait_ms": None,
        "trainers_to_come": 2,
        "began": False,
    }
    nothing = {"steps": 0, "steps_per_second": None, "waited_seconds": 0.0, "stepping_seconds": 0.0}
    ratios = dict.fromkeys(("imbalance", "imbalance_unbalanced", "fill"))
    line["status"]["totals"] = {**nothing, **ratios}
    line["ranks"] = {}
    figures = figures_of(write_record(tmp_path / "record", job, [line]))
    assert "no step in the 0.0 s" in summarise(figures)["verdict"][0]
    assert "2 training processes had no DataLoader" in Elements(make_page(figures)).text


def test_a_record_without_lines_says_so(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "record", MadeJob(), [])
    with pytest.raises(MSDataError, match="no figures yet"):
        figures_of(folder)


def test_a_file_that_no_record_gets_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = MadeJob()
    folder = write_record(tmp_path / "record", job, [job.second()])
    monkeypatch.setattr(figures_module, "_MOST_BYTES", 1000)
    with pytest.raises(MSDataError, match="keeps to less than"):
        figures_of(folder)


DAMAGES: list[Any] = [
    lambda line: line.pop("status"),
    lambda line: line.update(ranks=[1, 2]),
    lambda line: line.update(seconds="soon"),
    lambda line: line["ranks"].update(x=line["ranks"]["1"]),
    lambda line: line["status"]["sources"].update(tokens=[1]),
    lambda line: line["status"].update(totals=None),
    lambda line: line["ranks"]["1"].pop("peers"),
    lambda line: line["ranks"]["1"].update(histograms={"read": {"count": 1}}),
    lambda line: line["status"]["sources"].update(name=[f"s{index}" for index in range(5000)]),
    lambda line: line["sources"].update(read_seconds=["x", "y"]),
    lambda line: line["status"]["lost"].append(3),
]


@pytest.mark.parametrize("damage", range(len(DAMAGES)))
def test_a_damaged_record_is_an_error_of_ours(tmp_path: Path, damage: int) -> None:
    job = MadeJob()
    lines = [job.second(), job.second()]
    DAMAGES[damage](lines[0])
    DAMAGES[damage](lines[1])
    folder = write_record(tmp_path / "record", job, lines)
    with pytest.raises(MSDataError, match=r"damaged|at most"):
        make_page(figures_of(folder))


def test_numbers_that_json_has_not_are_left_out(tmp_path: Path) -> None:
    job = MadeJob()
    lines = [job.second() for _ in range(4)]
    lines[2]["ranks"]["1"]["memory_mb"] = lines[2]["ranks"]["1"]["pss_mb"] = float("nan")
    page = Elements(make_page(figures_of(write_record(tmp_path / "record", job, lines))))
    assert "NaN" not in page.scripts[0][1]
    assert page.values["charts"]["memory"]["series"][1]["y"][2] is None
