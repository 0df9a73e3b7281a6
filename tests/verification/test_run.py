"""`verify`: finds what is damaged, what does not fit and what was left; finds nothing where nothing is wrong."""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from recallkit.storage import artifacts
from recallkit.storage.given_files import MAX_JSON_BYTES
from recallkit.verification.run import Verified, verify
from tests.fuzz.conftest import make
from tests.fuzz.harness import assert_manners, copy_of, invoke


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    return make(tmp_path_factory.mktemp("verified") / "made")


@pytest.fixture
def folder(made: Path):
    with copy_of(made) as folder:
        yield folder


def recorded(folder: Path) -> list[Path]:
    """The files of which something is recorded."""
    found = [path for path in folder.rglob("*") if path.suffix in (".parquet", ".json", ".duckdb") and "lm-eval" not in path.parts]
    return sorted(path for path in found if path.is_file())


def lines(found: Verified) -> list[tuple[str, str]]:
    return [(finding.kind, finding.file) for finding in found.findings]


def test_good_results_are_sound(made):
    found = verify(made)
    assert (lines(found), found.is_sound) == ([], True)
    assert found.num_files == len(recorded(made)) - 1, "all but tokenizer.json, which is read with the sequences"
    outcome = assert_manners(invoke("verify", made))
    assert outcome.status == 0
    assert "everything is as it was written, and fits together" in outcome.out


def flips(folder: Path, number: int, seed: int) -> list[str]:
    """Flips that `verify` does not find although they change what is recorded."""
    drawn, missed = random.Random(seed), []
    files = recorded(folder)
    sizes = [path.stat().st_size for path in files]
    for tried in range(number):
        path = drawn.choice(files) if tried % 2 else drawn.choices(files, sizes)[0]
        content = path.read_bytes()
        at, bit = drawn.randrange(len(content)), drawn.randrange(8)
        changed = bytearray(content)
        changed[at] ^= 1 << bit
        path.write_bytes(changed)
        if verify(folder).is_sound and not is_same(path, content, bytes(changed)):
            missed.append(f"byte {at}, bit {bit} of {path.relative_to(folder)}")
        path.write_bytes(content)
    return missed


def ids_of(content: bytes, folder: Path) -> list[list[int]]:
    """The ids of some texts by a tokenizer.json."""
    tokenizer = Tokenizer.from_str(content.decode())
    return [tokenizer.encode(line, add_special_tokens=False).ids for line in (folder / "text.jsonl").read_text().splitlines()]


def is_same(path: Path, before: bytes, after: bytes) -> bool:
    """Whether a flip changes no number: white space in JSON, a tokenizer's field of no effect, bytes of a database that nobody reads."""
    if path.name == "tokenizer.json":
        return ids_of(before, path.parents[1]) == ids_of(after, path.parents[1])
    if path.suffix == ".json":
        return bool(json.loads(before) == json.loads(after))
    return path.suffix == ".duckdb" and invoke("count", path, "--export", path.with_suffix(".csv.parquet")).status != 0


def test_flipped_bits_are_found(folder):
    assert not flips(folder, 40, seed=3)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_thousand_flipped_bits_are_found(folder):
    assert not flips(folder, 1000, seed=4)


def test_a_damaged_file_is_named_with_a_remedy(folder):
    path = next(folder.glob("slices/scores/control-bigram*.parquet"))
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    outcome = assert_manners(invoke("verify", folder))
    assert outcome.status == 1
    assert f"damaged     {path.relative_to(folder)}: damaged (its content is not as it was written)" in outcome.out
    assert f"-> score them again with `recallkit score control:bigram --slices {folder}/slices --force`" in outcome.out
    told = json.loads(invoke("verify", folder, "--json").out)
    assert (told["sound"], [f["file"] for f in told["findings"]]) == (False, [str(path.relative_to(folder))])


def other(made: Path, folder: Path, *options: object) -> Path:
    """Slices of other sequences."""
    out = folder / "others"
    assert invoke("slice", made / "text.jsonl", "-o", out, "--seq-len", 16, *options).status == 0
    return out


def test_tables_of_other_results_do_not_fit(made, folder):
    others = other(made, folder, "--counts", folder / "counts.duckdb")
    shutil.copy(others / "sequences.parquet", folder / "slices" / "sequences.parquet")
    mismatched = {file for kind, file in lines(verify(folder)) if kind == "mismatch"}
    scores = {str(path.relative_to(folder)) for path in folder.glob("slices/scores/*.parquet")}
    assert {"slices/tokens.parquet", *scores} <= mismatched
    assert any(file.endswith("gap.parquet") for file in mismatched)


def test_a_table_of_another_run_among_its_set_does_not_fit(made, folder):
    gap = next(folder.glob("slices/gap/*"))
    other_gap = folder / "gap"
    command = ("gap", "control:recall", "control:unigram", "--slices", folder / "slices", "-o", other_gap)
    assert invoke(*command, "--counts", folder / "counts.duckdb").status == 0
    shutil.copy(other_gap / "by_count.parquet", gap / "by_count.parquet")
    assert lines(verify(folder)) == [("mismatch", str((gap / "by_count.parquet").relative_to(folder)))]


def test_scores_made_again_otherwise_do_not_fit_the_comparison(folder):
    command = ("score", "control:bigram", "--slices", folder / "slices", "--counts", folder / "counts.duckdb")
    assert invoke(*command, "--context", 16, "--stride", 8, "--force").status == 0
    found = verify(folder)
    assert {kind for kind, _ in lines(found)} == {"mismatch"}
    assert all("compared with other scores of control:bigram" in finding.problem for finding in found.findings)


def test_counts_and_tokenizers_of_others_do_not_fit(made, folder):
    counts, text = folder / "counts.duckdb", folder / "text.jsonl"
    assert invoke("slice", text, "--counts", counts, "-o", folder / "s", "--seq-len", 32).status == 0
    assert invoke("count", text, "-o", counts, "--limit-tokens", 100, "--force").status == 0
    told = {finding.file: finding.problem for finding in verify(folder).findings}
    assert told["s/tokens.parquet"] == "labelled with other counts than counts.duckdb has now"
    tokenizer = folder / "s" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"a":', '"\u0103":'))
    assert any(finding.is_error and "tokenizer" in finding.problem for finding in verify(folder).findings)


def test_a_manifest_file_of_another_table_does_not_fit(folder):
    path = folder / "slices" / "manifest.json"
    artifacts.write_json(path, {**artifacts.read_json(path), "max_count": 77})
    (finding,) = verify(folder).findings
    assert (finding.kind, finding.file) == ("mismatch", "slices/manifest.json")
    assert "differs in max_count" in finding.problem


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE bigrams SET count = count + 1 WHERE first = (SELECT min(first) FROM bigrams)",
        "DELETE FROM ngram_hashes WHERE hash = (SELECT min(hash) FROM ngram_hashes)",
    ],
)
def test_counts_that_were_changed_inside_are_found(folder, change):
    import duckdb

    with duckdb.connect(str(folder / "counts.duckdb")) as connection:
        assert connection.execute(change).fetchall() > [(0,)]
    assert lines(verify(folder)) == [("damaged", "counts.duckdb")]


DEAD = 2**22 + 1
"""Above the largest number of a process of Linux."""


def test_leftovers_are_told_and_swept(folder):
    host = "".join(c for c in platform.node() if c.isalnum()) or "host"
    left = folder / "slices" / f".tokens.parquet.{host}.{DEAD}.part"
    left.touch()
    staged = folder / "slices" / f".tables.{host}.{DEAD}.0af3.part"
    staged.mkdir()
    (staged / "tokens.parquet").touch()
    running = folder / "slices" / f".x.parquet.{host}.{os.getpid()}.part"
    running.touch()
    empty = folder / "slices" / ".tokens.parquet.partial"
    empty.mkdir()
    found = verify(folder)
    assert found.is_sound
    names = {f"slices/{path.name}" for path in (left, staged, empty)}
    assert {file for kind, file in lines(found) if kind == "leftover"} == names
    assert [file for kind, file in lines(found) if kind == "unfinished"] == [f"slices/{running.name}"]
    swept = verify(folder, clean=True)
    assert (swept.num_removed, lines(swept)) == (3, [("unfinished", f"slices/{running.name}")])
    assert not any(path.exists() for path in (left, staged, empty))
    assert running.exists()


def test_unfinished_work_is_kept_by_clean(folder):
    from recallkit.storage.journal import Journal

    with pytest.raises(KeyboardInterrupt), Journal(folder / "new.parquet", {"seed": 1}) as journal:
        artifacts.write_parquet(journal.part(0), [], artifacts_schema(), {})
        journal.commit({})
        raise KeyboardInterrupt
    found = verify(folder, clean=True)
    assert lines(found) == [("unfinished", ".new.parquet.partial")]
    state = journal.folder / "state.json"
    state.write_text(state.read_text().replace('"num_parts": 1', '"num_parts": 2'))
    assert ("damaged", ".new.parquet.partial/state.json") in lines(verify(folder))


def test_every_file_of_unfinished_work_is_checked(folder):
    from recallkit.storage.journal import PartsJournal

    journal = PartsJournal(folder / "new.parquet", {"seed": 1}, shared=True)
    with journal:
        artifacts.write_parquet(journal.parts.path(0), [], artifacts_schema(), {})
        journal.parts.settle("batch", lambda: 3)
    assert lines(verify(folder)) == [("unfinished", ".new.parquet.partial")]
    for path in journal.folder.glob("*-*"):
        content = path.read_bytes()
        path.write_bytes(content.replace(b"3", b"4") if path.name.startswith("settled") else content[:-9] + b"?" + content[-8:])
        assert ("damaged", f".new.parquet.partial/{path.name}") in lines(verify(folder))
        path.write_bytes(content)


def test_unfinished_work_of_other_options_than_the_result_beside_it_is_no_leftover(folder):
    from recallkit.storage.journal import Journal

    target = folder / "slices" / "tokens.parquet"
    options = artifacts.read_manifest(target)["options"]
    for key, kind in (({**options, "max_count": 77}, "unfinished"), (options, "leftover")):
        with pytest.raises(KeyboardInterrupt), Journal(target, key, force=True) as journal:
            journal.commit({})
            raise KeyboardInterrupt
        assert lines(verify(folder)) == [(kind, "slices/.tokens.parquet.partial")]


def test_tables_that_a_killed_run_had_committed_are_moved_into_place(folder):
    committed, path = folder / "slices" / artifacts.COMMITTED, folder / "slices" / "tokens.parquet"
    committed.mkdir()
    path.rename(committed / path.name)
    found = verify(folder)
    assert (lines(found), found.num_files) == ([], len(recorded(folder)) - 1), "what was moved is verified, too"
    assert path.exists()
    assert not committed.exists()


def test_a_table_with_another_number_of_rows_than_its_manifest_is_damaged(folder):
    import pyarrow.parquet as pq

    for path in (folder / "slices" / "tokens.parquet", next(folder.glob("slices/scores/*.parquet"))):
        manifest, table = artifacts.read_manifest(path), pq.read_table(path)
        artifacts.write_parquet(path, [table.slice(0, table.num_rows - 1)], table.schema.remove_metadata(), manifest)
        problem = f"{table.num_rows - 1:,} rows, but its manifest says {table.num_rows:,}"
        assert problem in {finding.problem for finding in verify(folder).findings if finding.file == str(path.relative_to(folder))}


@pytest.mark.parametrize("name", ["num_sequences", "num_rows", "longest", "sequences_digest"])
def test_sequences_that_are_not_as_their_manifest_says_are_damaged(folder, name):
    import pyarrow.parquet as pq

    path = folder / "slices" / "sequences.parquet"
    manifest, table = artifacts.read_manifest(path), pq.read_table(path)
    other = manifest[name][::-1] if isinstance(manifest[name], str) else manifest[name] + 1
    artifacts.write_parquet(path, [table], table.schema.remove_metadata(), {**manifest, name: other})
    (problem,) = (finding.problem for finding in verify(folder).findings if finding.kind == "damaged")
    assert problem == f"{name} is {manifest[name]} according to its rows, and {other} according to its manifest"


def test_a_manifest_file_without_its_table_and_one_that_is_cut_are_told(folder):
    path = next(folder.glob("slices/scores/*.json"))
    path.write_bytes(path.read_bytes()[:-3])
    assert ("damaged", str(path.relative_to(folder))) in lines(verify(folder))
    other = next(each for each in folder.glob("slices/scores/*.json") if each != path)
    other.with_suffix(".parquet").unlink()
    assert ("mismatch", str(other.relative_to(folder))) in lines(verify(folder))


def artifacts_schema():
    import pyarrow as pa

    return pa.schema([("a", pa.int8())])


def test_files_of_others_are_left_alone(tmp_path):
    import polars as pl

    pl.DataFrame({"text": ["a"]}).write_parquet(tmp_path / "corpus.parquet")
    shutil.copy(tmp_path / "corpus.parquet", tmp_path / BAD)
    (tmp_path / "config.json").write_text('{"mine": 1}')
    (tmp_path / f"{BAD}.json").write_text('{"mine": 1}')
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "text.json").touch()
    os.truncate(tmp_path / "text.json", MAX_JSON_BYTES + 1)
    found = verify(tmp_path, clean=True)
    assert lines(found) == [("foreign", BAD), ("foreign", "corpus.parquet")]
    assert found.is_sound
    assert len(list(tmp_path.iterdir())) == 6


BAD = os.fsdecode(b"bad\xff.parquet")
"""A name that is not UTF-8, which DuckDB cannot open, nor Arrow."""


def test_files_whose_names_are_not_text_are_findings_among_the_others(folder):
    table = next(folder.glob("slices/scores/*.parquet"))
    places = {table: table.with_name(BAD), table.with_suffix(".json"): table.with_name(BAD).with_suffix(".json")}
    places[folder / "counts.duckdb"] = folder / f"{BAD}.duckdb"
    places[folder / "slices" / "sequences.parquet"] = folder / BAD / "sequences.parquet"
    (folder / BAD).mkdir()
    for path, place in places.items():
        shutil.copy(path, place)
    (folder / "slices" / BAD).write_bytes(artifacts.PARQUET_MAGIC)
    (folder / "slices" / "tokens.parquet").write_bytes(b"")
    named = {str(place.relative_to(folder)) for place in [*places.values(), folder / "slices" / BAD]}
    outcome = assert_manners(invoke("verify", folder, "--clean"))
    assert "damaged     bad\\xdcff.parquet.duckdb: a name with characters that are not text" in outcome.out
    told = json.loads(invoke("verify", folder, "--json").out)
    damaged = {finding["file"] for finding in told["findings"] if finding["kind"] == "damaged"}
    assert damaged == {"slices/tokens.parquet", *(name.replace("\udcff", "\\udcff") for name in named)}
    assert json.dumps(told, ensure_ascii=False).encode("utf-8")


def test_a_name_that_is_not_text_is_a_finding_also_in_a_folder_given_relatively(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    bad = (folder / "counts.duckdb").rename(folder / f"{BAD}.duckdb")
    assert ("damaged", bad.name) in lines(verify(Path(folder.name)))


def test_a_folder_whose_name_is_not_text_is_told_once(folder):
    outcome = assert_manners(invoke("verify", folder.rename(folder.with_name(BAD)), "--json"))
    assert (outcome.status, outcome.out) == (1, "")
    assert "bad\\xdcff.parquet: a name with characters that are not text; rename it" in outcome.err


def test_a_folder_that_cannot_be_read_is_a_finding(tmp_path):
    """One whose path is longer than the system takes, which even its administrator cannot read."""
    place = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=place)
        inner = os.open("d" * 250, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    (finding,) = verify(tmp_path).findings
    assert (finding.kind, finding.problem) == ("damaged", "cannot be read (File name too long)")


def test_a_folder_that_is_not_there_is_told(tmp_path):
    outcome = assert_manners(invoke("verify", tmp_path / "none"))
    assert outcome.status == 1
    assert "no such directory" in outcome.err
