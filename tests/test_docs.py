"""What the documents name exists, and what they quote was measured."""

from __future__ import annotations

import csv
import json
import pkgutil
import re
import statistics
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from shared_data import real_vrd

from polyadic.cli import main
from polyadic.config import PRESETS
from polyadic.datasets.toy.world import World
from polyadic.experiments.demo import truth_rows
from polyadic.experiments.results import read_rows
from polyadic.pretrained import detector_folder

ROOT = Path(__file__).parents[1]
LU, VRD_16 = "Lu's boxes", ("VRD", "16")


def test_every_function_and_test_in_the_map_of_the_paper_exists() -> None:
    text = (ROOT / "docs" / "paper.md").read_text()
    names = set(re.findall(r"`((?:[a-z]+|test_\w+)\.[\w.]+)`", text))
    assert len(names) > 20
    for name in names:
        assert pkgutil.resolve_name(name if name.startswith("test_") else f"polyadic.{name}")


def test_the_layers_in_contributing_are_the_rooms_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    source = ROOT / "src" / "polyadic"
    rooms = {path.relative_to(source).with_suffix("").parts[0] for path in source.rglob("*.py")} - {"__init__"}
    assert rooms > {"cp", "ranking", "evaluation", "cli"}
    for room in rooms:
        assert f"`{room}" in text or f" {room}" in text, room


def test_links_between_the_documents_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_library_page_shows_what_the_example_prints() -> None:
    blocks = re.findall(r"```text\n(.*?)```", (ROOT / "docs" / "library.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    code = [sys.executable, str(ROOT / "examples" / "joint.py")]
    printed = subprocess.run(code, capture_output=True, text=True, check=True).stdout
    assert "gave the same list" in printed
    lines = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
    for line in filter(None, blocks[0].splitlines()):
        words = re.split(r"\s{2,}", line.strip())
        assert any(len(words) == len(other) and all(map(alike, words, other)) for other in lines), line


def alike(word: str, other: str) -> bool:
    """The same word, or numbers that differ by rounding."""
    if word.rstrip("%").replace(".", "", 1).isdigit() and other.rstrip("%").replace(".", "", 1).isdigit():
        return abs(float(word.rstrip("%")) - float(other.rstrip("%"))) < (0.5 if "%" in word else 0.01)
    return word == other


def test_the_benchmarks_page_quotes_ranking_and_loss_as_measured() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    with (ROOT / "results" / "ranking.csv").open() as file:
        rows = list(csv.DictReader(file))
    for group, count in {"shipped model": 60, "20 pairs": 162, "380 pairs": 162}.items():
        ratios = [float(row["ratio"]) for row in rows if row["group"] == group]
        assert len(ratios) == count
        low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
        quoted = f"| **{median:.0f}x** | {low:.0f}x to {high:.0f}x | {min(ratios):.0f}x |"
        assert any(line.startswith(f"| {group}") and line.endswith(quoted) for line in text.splitlines()), quoted
    with (ROOT / "results" / "loss.csv").open() as file:
        shares = [float(row["share"]) for row in csv.DictReader(file) if row["kind"] == "step"]
    assert f"at most {max(shares):.2%} of a training step" in text


def test_the_benchmarks_page_quotes_the_odd_cases_as_measured() -> None:
    """Those in text files: equal and nearly equal scores, the cost of a call, a huge vocabulary, memory of the loss."""
    text = " ".join((ROOT / "docs" / "benchmarks.md").read_text().split())
    measured = (ROOT / "results" / "ranking.txt").read_text()
    cases = re.findall(r"^ +(0\.\d+) +V\w+ +1 +\S+ +([\d.]+)x", measured, re.MULTILINE)
    equal, nearly = ([float(x) for t, x in cases if (t == "0.0") == same] for same in (True, False))
    assert (len(equal), len(nearly)) == (3, 6)
    assert f"are {min(equal):.0f}x to {max(equal):.0f}x faster" in text
    assert f"the worst case, {min(nearly):.0f}x to {max(nearly):.0f}x" in text
    call = re.search(r"Fixed cost of a call with all terms: ([\d.]+) ms", measured)
    assert call
    assert f"nothing to search takes {float(call[1]):.2f} ms" in text
    huge = [float(x) for x in re.findall(r"^  t = \d.* ([\d.]+) s$", measured, re.MULTILINE)]
    assert f"ranks 380 pairs in {min(huge):.2f} to {max(huge):.2f} s" in text
    for group in ("shipped model", "20 pairs", "380 pairs"):
        with (ROOT / "results" / "ranking.csv").open() as file:
            times = [float(row["exact_ms"]) for row in csv.DictReader(file) if row["group"] == group]
        assert re.search(rf"\| {group}[^|]*\| {len(times)} \| {statistics.median(times):.2f} ms \|", text), group
    with (ROOT / "results" / "loss.csv").open() as file:
        rows = list(csv.DictReader(file))
    memory = {row["kind"]: float(row["peak_mb"]) for row in rows if (row["data"], row["pairs"]) == VRD_16}
    assert f"1/{memory['dense'] / memory['closed']:.0f} of its memory" in text
    ms = {((row["data"], row["pairs"], row["rank"]), row["kind"]): float(row["ms"]) for row in rows}
    most = max(time / ms[case, "closed"] for (case, kind), time in ms.items() if kind == "autograd")
    assert f"up to {most:.1f} times faster than autograd's" in text


def test_the_benchmarks_page_quotes_training_as_measured() -> None:
    text = " ".join((ROOT / "docs" / "benchmarks.md").read_text().split())
    with (ROOT / "results" / "training.csv").open() as file:
        ratio = {row["what"]: float(row["ratio"]) for row in csv.DictReader(file)}
    toy, lite, vgg = (ratio[f"epoch {name}"] for name in ("toy", "tf_efficientnet_lite0", "vgg16"))
    assert f"{toy:.1f}x faster with the toy's own backbone" in text
    assert f"{lite:.0f}x with EfficientNet-Lite0, {vgg:.0f}x with VGG16" in text
    head = {
        name: ratio[f"head {name}"]
        for name in ("20 boxes, 380 pairs, forward", "20 boxes, 380 pairs, forward + backward")
    }
    one, two = head.values()
    assert f"{one:.1f}x faster forward and {two:.1f}x with backward at 20 boxes" in text


def test_the_protocols_page_quotes_the_results_on_lu_s_predictions() -> None:
    text = (ROOT / "docs" / "protocols.md").read_text()
    with (ROOT / "results" / "vrd-lu.csv").open() as file:
        rows = list(csv.DictReader(file))

    def recall(what: str, task: str, k: str, subset: str, n: str) -> float:
        wanted = (what, task, k, subset, n)
        found = [r for r in rows if (r["what"], r["task"], r["k"], r["subset"], r["N"]) == wanted]
        assert len(found) == 1
        return float(found[0]["recall"])

    for task in ("relationship", "phrase"):
        for subset, name in (("all", task), ("zero-shot", f"zero-shot {task}")):
            cells = " | ".join(f"{recall('predictions', task, 'any', subset, n):.6f}" for n in ("20", "50", "100"))
            assert f"| {name} | {cells} |" in text
    pairs = [
        " / ".join(f"{recall('count table', task, k, 'all', n):.2f}" for n in ("50", "100"))
        for task in ("relationship", "phrase")
        for k in ("1", "10")
    ]
    assert f"| count table, no pixels | {' | '.join(pairs)} |" in text
    for what in ("ceiling, labels kept", "ceiling, relabelled"):
        r, p = (f"{recall(what, task, 'any', 'all', 'any'):.2f}" for task in ("relationship", "phrase"))
        assert f"| {what}, any k and N | {r} | {r} | {p} | {p} |" in text


def test_the_toy_page_quotes_the_ablation_of_the_drawn_world(unchecked: None) -> None:
    text = (ROOT / "docs" / "toy.md").read_text()
    with (ROOT / "results" / "toy.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["what"] == "model"]
    lines = [(f"Rank-{rank}", str(rank), "psi_c") for rank in (1, 2, 3, 4, 5)]
    for rank in ("1", "5"):
        lines.append((f"Rank-{rank} w/ X_sel", rank, "psi_c + selected"))
        lines.append((f"Rank-{rank} w/ X_sel & prior", rank, "psi_c + selected + prior"))
    for label, rank, parts in lines:
        mine = [row for row in rows if (row["rank"], row["parts"]) == (rank, parts)]
        cells = []
        for k, n in (("free", "50"), ("free", "100"), ("1", "50"), ("1", "100")):
            found = [float(row["recall"]) for row in mine if (row["k"], row["N"]) == (k, n)]
            assert len(found) == 3
            cells.append(f"{statistics.fmean(found):.1f} ± {statistics.stdev(found):.1f}")
        loss = statistics.fmean({row["seed"]: float(row["loss"]) for row in mine}.values())
        quoted = f"| {label} | {' | '.join(cells)} | {loss:.2f} |"
        assert quoted in text, quoted
    stored = read_rows(ROOT / "results" / "toy-truth.csv")
    exact = [row.recall for row in stored if row.recall is not None and row.N != 20]
    assert exact == pytest.approx([row.recall for row in truth_rows(World().dataset("test").scenes)])
    assert f"| the exact truth | {' | '.join(f'{recall:.1f}' for recall in exact)} | |" in text
    truth, product = (row.loss for row in stored if row.split == "validation")
    flat = " ".join(text.split())
    assert f"{truth:.2f} for the true distribution, and {product:.2f} for the product of its marginals" in flat
    datasets = (ROOT / "docs" / "datasets.md").read_text()
    short = [row for row in stored if row.N == 20]
    for name, row in zip(("the truth", "the best of rank 1", "the truth, every pair alike"), short, strict=True):
        assert f"| {name} | {row.loss:.2f} | {row.recall:.1f} |" in datasets


def test_the_common_evaluation_is_twenty_times_the_plain_loop() -> None:
    with (ROOT / "results" / "evaluation.csv").open() as file:
        rows = {row["case"]: row for row in csv.DictReader(file)}
    assert float(rows["relationship at three N"]["loop ratio"]) >= 20


def test_the_examples_of_the_documents_work_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The own dataset of docs/datasets.md, scored with the predictions of docs/protocols.md by README's command."""
    dataset, predictions = (
        re.findall(r"```json\n(.*?)```", (ROOT / "docs" / name).read_text(), re.DOTALL)
        for name in ("datasets.md", "protocols.md")
    )
    assert (len(dataset), len(predictions)) == (1, 1)
    for split in ("train", "test"):
        (tmp_path / f"{split}.json").write_text(dataset[0])
    (tmp_path / "predictions.jsonl").write_text(predictions[0])
    command = re.search(r"polyadic (evaluate predictions\.jsonl .*)", (ROOT / "README.md").read_text())
    assert command
    words = command.group(1).replace("vrd --root data/vrd", "coco --root .").split()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # the command replaces it
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "lu2016 phrase, k = 10 triplets (1 truths in 1 images)" in out
    assert re.search(r"predictions +100\.00 +100\.00 +100\.00", out)


def test_the_toy_page_quotes_both_stages() -> None:
    text = (ROOT / "docs" / "toy.md").read_text()
    with (ROOT / "results" / "two-stages.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["subset"] == "all"]
    about = json.loads((ROOT / "results" / "two-stages.json").read_text())
    for what, label in (("predictions", "both stages"), ("count table", "count table on the same boxes")):
        cells = []
        for task in ("relationship", "phrase"):
            for k in ("1", "10", str(about["free_k"][task] or "any")):
                found = {
                    row["N"]: float(row["recall"])
                    for row in rows
                    if (row["what"], row["task"], row["k"]) == (what, task, k)
                }
                cells.append(f"{found['50']:.1f} / {found['100']:.1f}")
        assert f"| {label} | {' | '.join(cells)} |" in text
    held_out = about["held_out"]
    assert f"mAP {held_out['mAP']:.1f} and AP50 {held_out['AP50']:.1f}" in text
    assert f"mAP {held_out['mAP']:.1f} and AP50 {held_out['AP50']:.1f}" in (ROOT / "docs" / "detector.md").read_text()


def test_the_benchmarks_page_quotes_the_pipeline_as_measured() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    with (ROOT / "results" / "pipeline.csv").open() as file:
        rows = {row["what"]: row for row in csv.DictReader(file)}
    for what, row in rows.items():
        times = [f"{float(row[f'{part}_ms']):.0f}" for part in ("decode", "detector", "features", "heads")]
        cells = [*times, f"{float(row['ranking_ms']):.1f}", f"{100 * float(row['ranking_share']):.2f}%"]
        ratio = f"{float(row['ratio']):.2f}x" if row["ratio"] else ""
        assert f"| {what} | {' | '.join(cells)} | {ratio} |" in text


def tables_script() -> Any:
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("tables", ROOT / "results" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    tables = module_from_spec(spec)
    spec.loader.exec_module(tables)
    return tables


def readme_prose() -> str:
    """README without its generated table, its code and the targets of its links; spaces are single."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for pattern in (r"(?s)<!-- table .*?<!-- end -->", r"(?s)```.*?```", r"(?m)^    .*$", r"\]\([^)]*\)"):
        text = re.sub(pattern, "", text)
    return " ".join(text.split())


COUNTED = ("1,227 small photos", "the paper has VGG16 and 4,000 photos", "the annotations of all 4,000 images")


def test_every_number_of_readme_is_in_the_results(unchecked: None) -> None:
    """Outside its generated table and its code, README has no digit that is not listed here."""
    tables, text = tables_script(), readme_prose()
    with (ROOT / "results" / "photos.csv").open() as file:
        photos = {(row["boxes"], row["measure"]): float(row["value"]) for row in csv.DictReader(file)}
    with (ROOT / "results" / "loss.csv").open() as file:
        times = {row["kind"]: float(row["ms"]) for row in csv.DictReader(file) if (row["data"], row["pairs"]) == VRD_16}
    with (ROOT / "results" / "ranking.csv").open() as file:
        ratios = [(row["group"], float(row["ratio"])) for row in csv.DictReader(file)]

    lies = [photos[boxes, "on annotated objects"] for boxes in (LU, "photos alone")]
    ranks = {
        name: tables.differences("vrd-ablation", parts, "free", 50)
        for name, parts in (("psi_c", "psi_c"), ("full", "psi_c + selected + prior"))
    }
    gain, loss = (statistics.fmean(numbers) for numbers in ranks.values())
    p = {name: f"p = {tables.p_value(numbers):.2f}" for name, numbers in ranks.items()}
    assert {len(numbers) for numbers in ranks.values()} == {3}
    large, small = (statistics.median(x for name, x in ratios if name == group) for group in ("380 pairs", "20 pairs"))
    names = json.loads((detector_folder() / "vocabulary.json").read_text())
    recipe = PRESETS["vrd-pixels"]
    quoted = [
        f"{lies[0]:.0f}% lie on annotated objects, against {lies[1]:.0f}% of a COCO detector's",
        f"Rank 5 against rank 1, paired over three seeds (free k, R@50): {gain:+.1f} with ψ_c alone ({p['psi_c']})",
        f"−{-loss:.1f} with P(X_sel) and the full prior, the paper's final configuration ({p['full']}, t-test",
        f"rank {recipe.head.rank}, P(X_sel), ψ_u to the power {recipe.ranking.prior:g}",
        f"VRD's {len(names['objects'])} objects and {len(names['predicates'])} predicates",
        f"a small detector ([{(detector_folder() / 'model.safetensors').stat().st_size / 1e6:.0f} MB",
        f"{large:.0f}x faster than a fused dense kernel at 380 pairs (median; {small:.0f}x at 20)",
        f"the loss {times['dense'] / times['closed']:.0f}x faster than a dense cross-entropy",
        *COUNTED,  # by the next test
        "AAAI 2020",
        "protocol `lu2016`, R@50 / R@100, mean of three seeds",
        "(`lu2016`,",
        "EfficientNet-Lite0",
        "`polyadic reproduce table1` to `table4`",
    ]
    for words in quoted:
        assert text.count(words) == 1, words
        text = text.replace(words, "")
    assert not re.findall(r"\S*\d\S*", text)


def test_the_counts_of_readme_are_those_of_the_data() -> None:
    train = real_vrd("train")
    assert f"{sum(scene.has_picture() for scene in train):,} small photos" == COUNTED[0]
    assert all(f"{len(train):,}" in words for words in COUNTED[1:])


def test_the_generated_tables_are_those_of_the_results(unchecked: None) -> None:
    """`make tables` would change nothing."""
    tables = tables_script()
    for name in tables.DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "<!-- table " in text
        assert tables.filled(text) == text, f"{name}: run `make tables`"
