"""`verify`: finds what is damaged, what does not fit and what was left; finds nothing where nothing
is wrong."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from recallkit.storage import artifacts, parquet_files
from recallkit.storage.journal import leftover
from recallkit.storage.unfinished import MARK, open_marked
from recallkit.verification.findings import Verified
from recallkit.verification.run import verify
from tests.fuzz.conftest import make
from tests.fuzz.harness import assert_manners, assert_refused, copy_of, invoke


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    return make(tmp_path_factory.mktemp("verified") / "made")


@pytest.fixture
def folder(generated: Path):
    with copy_of(generated) as folder:
        yield folder


def recorded(folder: Path) -> list[Path]:
    """The files of which something is recorded."""
    files = [path for path in folder.rglob("*") if "lm-eval" not in path.parts]
    kinds = (".parquet", ".json", ".duckdb")
    return sorted(path for path in files if path.is_file() and path.suffix in kinds)


def lines(verified: Verified) -> list[tuple[str, str]]:
    """Kinds and files of findings, without the texts, which are nobody's."""
    findings = [finding for finding in verified.findings if not finding.file.endswith(".jsonl")]
    return [(finding.kind, finding.file) for finding in findings]


def test_good_results_are_sound(generated):
    verified = verify(generated)
    assert (lines(verified), verified.is_sound) == ([], True)
    assert verified.num_files >= len(recorded(generated))
    outcome = assert_manners(invoke("verify", generated))
    assert outcome.status == 0
    assert "all results are unchanged and belong together" in outcome.out


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
    return [
        tokenizer.encode(line, add_special_tokens=False).ids
        for line in (folder / "text.jsonl").read_text().splitlines()
    ]


def is_same(path: Path, before: bytes, after: bytes) -> bool:
    """Whether a flip changes no number: white space in JSON, a tokenizer's field of no effect,
    bytes of a database that nobody reads."""
    if path.name == "tokenizer.json":
        return ids_of(before, path.parents[1]) == ids_of(after, path.parents[1])
    if path.suffix == ".json":  # how long it took is in no digest
        return bool(
            {**json.loads(before), "timings": 0, "seconds": 0}
            == {**json.loads(after), "timings": 0, "seconds": 0}
        )
    return (
        path.suffix == ".duckdb"
        and invoke("count", path, "--export", path.with_suffix(".csv.parquet")).status != 0
    )


def test_flipped_bits_are_found(folder):
    assert not flips(folder, 20, seed=3)


def test_a_damaged_file_is_named_with_a_remedy(folder):
    path = next(folder.glob("slices/scores/control-bigram*.parquet"))
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    outcome = assert_manners(invoke("verify", folder))
    assert outcome.status == 1
    assert (
        f"changed     {path.relative_to(folder)}:\n            damaged (changed since it was "
        "written)\n"
    ) in outcome.out
    assert (
        f"-> score them again with `recallkit score control:bigram --slices {folder}/slices "
        "--force`"
    ) in outcome.out
    output = json.loads(invoke("verify", folder, "--json").out)
    assert (output["sound"], [f["file"] for f in output["findings"] if f["kind"] != "foreign"]) == (
        False,
        [str(path.relative_to(folder))],
    )


def other(generated: Path, folder: Path, *options: object) -> Path:
    """Slices of other sequences."""
    out = folder / "others"
    assert (
        invoke("slice", generated / "text.jsonl", "-o", out, "--seq-len", 16, *options).status == 0
    )
    return out


def test_tables_of_other_results_do_not_fit(generated, folder):
    others = other(generated, folder, "--counts", folder / "counts.duckdb")
    for name in ("sequences.parquet", "sequences.json"):
        shutil.copy(others / name, folder / "slices" / name)
    mismatched = {file for kind, file in lines(verify(folder)) if kind == "mismatch"}
    scores = {str(path.relative_to(folder)) for path in folder.glob("slices/scores/*.parquet")}
    assert {"slices/tokens.parquet", *scores} <= mismatched
    assert any(file.endswith("gap.parquet") for file in mismatched)


def test_a_table_of_another_run_among_its_set_is_changed(generated, folder):
    gap = next(folder.glob("slices/gap/*"))
    other_gap = folder / "gap"
    command = (
        "gap",
        "control:recall",
        "control:unigram",
        "--slices",
        folder / "slices",
        "-o",
        other_gap,
    )
    assert invoke(*command, "--counts", folder / "counts.duckdb").status == 0
    shutil.copy(other_gap / "by_count.parquet", gap / "by_count.parquet")
    assert lines(verify(folder)) == [
        ("changed", str((gap / "by_count.parquet").relative_to(folder)))
    ]


def test_scores_made_again_otherwise_do_not_fit_the_comparison(folder):
    command = (
        "score",
        "control:bigram",
        "--slices",
        folder / "slices",
        "--counts",
        folder / "counts.duckdb",
    )
    assert invoke(*command, "--context", 16, "--stride", 8, "--force").status == 0
    [finding] = [finding for finding in verify(folder).findings if finding.kind != "foreign"]
    assert (finding.kind, finding.problem) == ("mismatch", "made of other scores of control:bigram")
    assert finding.file.endswith("/gap.parquet"), "once for a result, not for each of its tables"


def test_remedies_for_scores_made_again_or_removed_mend_them(folder):
    """Also of models with names of their own, of interventions and of tracked runs."""
    slices, counts = folder / "slices", ("--counts", folder / "counts.duckdb")
    for command in ("gap", "intervene", "track"):
        assert (
            invoke(
                command, "control:recall", "y-100=control:bigram", "--slices", slices, *counts
            ).status
            == 0
        )
    again = ("score", "y-100=control:unigram", "--slices", slices, *counts, "--force")
    assert invoke(*again).status == 0
    stale = {
        Path(finding.file): finding.remedy
        for finding in verify(folder).findings
        if finding.kind == "mismatch"
    }
    assert {file.stem for file in stale} == {"gap", "intervene", "track"}
    for file, remedy in stale.items():
        command = (
            f"recallkit {file.stem} control:recall y-100=control:unigram --slices {slices} -o "
            f"{folder / file.parent}"
        )
        assert remedy == f"run it again with its options: `{command}`"
        assert invoke(*command.split()[1:], *counts).status == 0
    assert verify(folder).is_sound
    (slices / "scores" / "y-100.parquet").unlink()
    [missing] = [finding for finding in verify(folder).findings if finding.kind == "missing"]
    command = re.fullmatch("score them again with `recallkit (.+)`", missing.remedy)
    assert command is not None
    assert invoke(*command[1].split(), *counts).status == 0
    assert verify(folder).is_sound


def test_counts_and_tokenizers_of_others_do_not_fit(generated, folder):
    counts, text = folder / "counts.duckdb", folder / "text.jsonl"
    assert (
        invoke("slice", text, "--counts", counts, "-o", folder / "s", "--seq-len", 32).status == 0
    )
    assert invoke("count", text, "-o", counts, "--limit-tokens", 100, "--force").status == 0
    output = {finding.file: finding.problem for finding in verify(folder).findings}
    assert output["s/tokens.parquet"] == "labelled with other counts than counts.duckdb has now"
    tokenizer = folder / "s" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"a":', '"\u0103":'))
    assert ("changed", "s/tokenizer.json") in lines(verify(folder))


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
    assert lines(verify(folder)) == [("changed", "counts.duckdb")]


def test_every_deleted_file_of_a_result_is_missed(folder):
    """Each of them, alone; of sequences and their tokenizer, too, without which nothing can be
    labelled again."""
    listed = [path for path in recorded(folder) if path.suffix != ".duckdb"]
    assert {
        "tokens.parquet",
        "sequences.parquet",
        "sequences.json",
        "manifest.json",
        "tokenizer.json",
    } <= {path.name for path in listed}
    unnoticed = []
    for path in listed:
        content = path.read_bytes()
        path.unlink()
        result = folder / path.relative_to(folder).parts[0]
        unnoticed += [str(path.relative_to(folder))] * verify(
            result if result.is_dir() else folder
        ).is_sound
        path.write_bytes(content)
    assert unnoticed == []


def test_exports_are_members_and_their_flipped_bits_are_found(folder):
    command = (
        "gap",
        "control:recall",
        "control:bigram",
        "--slices",
        folder / "slices",
        "-o",
        folder / "g",
        "--export",
        "csv,json,md,tex",
    )
    assert invoke(*command, "--counts", folder / "counts.duckdb").status == 0
    exported = [
        path
        for path in (folder / "g").iterdir()
        if path.suffix in (".csv", ".md", ".tex") or path.name == "gap.json"
    ]
    assert {path.suffix for path in exported} == {".csv", ".json", ".md", ".tex"}
    for path in exported:
        content = path.read_bytes()
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        assert ("changed", str(path.relative_to(folder))) in lines(verify(folder))
        path.write_bytes(content)


GAP = (
    "gap control:recall control:bigram --slices {folder}/slices --counts {folder}/counts.duckdb "
    "-o {out} --force"
)
REPORT = "report {folder}/slices -o {out}/page.html"
SWEEP = (
    "--seq-len 16 --pairs 2 --test-seq-len 16 --test-pairs 2 --vocab 64 --widths 16 --examples 8 "
    "--test-examples 8 --batch 8 --steps 2"
)
WRITTEN = {
    "rows.jsonl": "build-rows {folder}/documents.jsonl -o {out}/rows.jsonl --force",
    "page.html": REPORT,
    "figures/*.svg": f"{REPORT} --figures {{out}}/figures",
    "figures/*.tex": f"{REPORT} --figures {{out}}/figures",
    "gap.csv": f"{GAP} --export csv",
    "card-*.md": f"{GAP} --export card",
    "gap.parquet": GAP,
    "counts.duckdb": "count {folder}/text.jsonl -o {out}/counts.duckdb --force",
    "bigrams.parquet": (
        "count {folder}/text.jsonl -o {folder}/counts.duckdb --export {out}/bigrams.parquet --force"
    ),
    "pack/ids.npy": "slice {folder}/text.jsonl -o {out} --seq-len 32 --pack --force",
    "lm-eval/*/samples_*.jsonl": (
        "eval-recall control:unigram --lm-eval-task {folder}/task.yaml -o {out} --force"
    ),
    "checkpoint-*/config.json": (
        "train zoo:attention {folder}/text.jsonl --tokens 512 --seq-len 32 --batch 8 --no-lists "
        "-o {out} --force"
    ),
    "runs/?????*[0-9a-f].json": (
        f"train --task mqar {SWEEP} --mixers attention --learning-rates 1e-3 --device cpu -o "
        f"{{out}} --force"
    ),
}
"""A file of every kind that commands write -> the command, with `--force` where it has that."""
DATED = "lm-eval/*/samples_*.jsonl"
"""Of another name in every run."""
TABLES = (".parquet", ".duckdb", ".npy")


@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_of_every_kind_is_in_a_list_and_what_is_in_none_or_edited_is_not_replaced(
    folder, name
):
    (folder / "documents.jsonl").write_text(
        '{"text": "Name: Zork is here.", "pairs": {"Name": "Zork"}}\n'
    )
    (folder / "task.yaml").write_text(
        "task: t\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: "
        f"{folder}/documents.jsonl\n"
        "test_split: test\noutput_type: loglikelihood\ndoc_to_text: Name\ndoc_to_target: Zork\n"
        "metric_list:\n  - metric: acc\n"
    )
    out = folder / "out"
    words = WRITTEN[name].format(folder=folder, out=out).split()
    assert assert_manners(invoke(*words)).status == 0
    path = min(path for path in out.glob(name) if path.name != "manifest.json")
    written, changes = path.read_bytes(), {}
    path.unlink()
    changes["missing"] = verify(out)
    path.write_bytes(written[:9] + bytes([written[9] ^ 1]) + written[10:])
    changes["changed"] = verify(out)
    for kind, verified in changes.items():
        assert (kind, str(path.relative_to(out))) in {
            (finding.kind, finding.file) for finding in verified.findings
        }
    edited = written + b"mine\n"
    path.write_bytes(edited)
    outcome = assert_manners(invoke(*words))
    if path.suffix in TABLES:
        assert (outcome.status, verify(out).is_sound) == (0, True)
    elif name == DATED:
        assert (outcome.status, path.read_bytes()) == (0, edited)
    else:
        assert_refused(
            outcome, path.name, "changed since recallkit wrote it", "move this file away"
        )
        assert path.read_bytes() == edited
    shutil.rmtree(out)
    mine = path.with_name("manifest.json") if name == DATED else path
    mine.parent.mkdir(parents=True)
    mine.write_bytes(written)  # the same bytes, in no list
    assert_refused(invoke(*words), mine.name, "did not write", "move this file away")
    assert mine.read_bytes() == written


@pytest.mark.parametrize(
    "words",
    [
        "report {0}/slices -o {0}/rows2.jsonl",
        "report {0}/slices -o {0}/counts.duckdb",
        "report {0}/slices -o {0}/slices/tokenizer.json",
        "report {0}/slices -o {0}/slices/sequences.json",
        "build-rows {0}/documents.jsonl -o {0}/slices/tokens.parquet --force",
        "build-rows {0}/documents.jsonl -o {0}/counts.duckdb --force",
        "count {0}/text.jsonl -o {0}/slices/tokens.parquet --force",
        "count {0}/text.jsonl -o {0}/rows2.jsonl --force",
        "count {0}/text.jsonl -o {0}/counts.duckdb --export {0}/counts.duckdb --force",
    ],
)
def test_a_file_of_another_kind_is_not_replaced(folder, words):
    (folder / "documents.jsonl").write_text(
        '{"text": "Name: Zork is here.", "pairs": {"Name": "Zork"}}\n'
    )
    assert (
        invoke("build-rows", folder / "documents.jsonl", "-o", folder / "rows2.jsonl").status == 0
    )
    path = Path(words.format(folder).replace(" --force", "").split()[-1])
    before = path.read_bytes()
    assert_refused(invoke(*words.format(folder).split()), path.name, "give another name")
    assert path.read_bytes() == before or "--export" in words
    assert verify(folder).is_sound


def test_a_list_goes_where_no_file_of_somebody_else_is(folder):
    """As where the shell made page.json for what `--json` prints, and in a folder with a manifest
    of another program."""
    for mine, listing in (("page.json", "manifest.json"), ("manifest.json", "page.json")):
        out = folder / listing.partition(".")[0]
        out.mkdir()
        (out / mine).write_text("" if mine == "page.json" else '{"name": "an app"}')
        for _ in range(2):
            assert (
                assert_manners(invoke("report", folder / "slices", "-o", out / "page.html")).status
                == 0
            )
            assert (out / mine).read_text() in ("", '{"name": "an app"}')
            (out / mine).write_text('{"name": "an app"}')
        assert list(artifacts.members(out / listing)) == ["page.html"]
        assert verify(out).is_sound
    (out / "page.json").write_text((out / "page.json").read_text().replace("files", "filet"))
    assert_refused(
        invoke("report", folder / "slices", "-o", out / "page.html"),
        "page.json: changed since",
        "move this file away",
    )
    assert_refused(
        invoke("report", folder / "slices", "-o", folder / "manifest.json"),
        "the name of the list",
        "give another name",
    )


def test_the_loss_of_a_list_is_noted(folder):
    """Of tables as an error: what is in them says whose they are. A folder of other files has one
    note."""
    assert invoke("report", folder / "slices", "-o", folder / "p" / "page.html").status == 0
    for listing in (folder / "p" / "page.json", folder / "counts.json"):
        listing.unlink()
    output = {(finding.kind, finding.file): finding.problem for finding in verify(folder).findings}
    assert output["foreign", "p"].startswith("1 file in no list")
    assert "no list names" in output["missing", "counts.duckdb"]


def test_a_table_without_its_list_is_sound_once_the_list_is_copied_or_the_table_made_again(folder):
    """As of counts that were downloaded alone: what no list names is not replaced, even with
    `--force`."""
    command = ("count", folder / "text.jsonl", "-o", folder / "counts.duckdb")
    for path, remake in (
        (folder / "counts.duckdb", command),
        (folder / "slices" / "tokens.parquet", None),
    ):
        listing = next(
            listing for listing in artifacts.lists_beside(path) if artifacts.is_stamped(listing)
        )
        content = listing.read_bytes()
        listing.unlink()
        [finding] = [f for f in verify(path.parent).findings if f.file == path.name]
        assert (finding.kind, finding.remedy) == (
            "missing",
            "copy its list here, too, or move it away and make it again",
        )
        if remake is not None:
            assert_refused(invoke(*remake, "--force"), "will not replace")
            path.rename(folder / "away")
            assert invoke(*remake).status == 0
            assert verify(folder).is_sound
        else:
            assert_refused(
                invoke("score", "control:bigram", "--slices", folder / "slices"),
                "copy its list here, too",
            )
            listing.write_bytes(content)
            assert verify(folder).is_sound


def test_a_damaged_list_of_counts_is_made_again(folder):
    listing = folder / "counts.json"
    listing.write_text(listing.read_text().replace("files", "filet"))
    assert ("changed", "counts.json") in lines(verify(folder))
    command = ("count", folder / "text.jsonl", "-o", folder / "counts.duckdb", "--force")
    assert assert_manners(invoke(*command)).status == 0
    assert not {"counts.json", "counts.duckdb"} & {file for _, file in lines(verify(folder))}


def test_clean_removes_what_a_killed_run_left_and_nothing_of_anybody_else(folder):
    killed = folder / "slices" / ".tokens.parquet.new.partial"
    strangers = [
        folder / "backup.partial",
        folder / ".mine.partial",
        folder / "slices" / ".committed",
    ]
    for stranger in strangers:
        stranger.mkdir()
        (stranger / "tokens.parquet").write_text("precious")
    (folder / "gone.partial").symlink_to(folder / "nowhere")
    elsewhere = folder.with_name("elsewhere.partial")
    (folder / "linked.partial").symlink_to(elsewhere)
    for marked in (killed, elsewhere):
        marked.mkdir()
        (marked / MARK).write_text(
            json.dumps({"made_by": "recallkit", "files": ["tokens.parquet"]})
        )
    (elsewhere / "tokens.parquet").write_text("precious")
    (killed / "tokens.parquet").write_bytes(b"half")
    (killed / "notes.txt").write_text("precious")
    before = set(folder.rglob("*"))
    assert ("leftover", str(killed.relative_to(folder))) in lines(verify(folder))
    assert set(folder.rglob("*")) == before, "without --clean nothing is written"
    verify(folder, clean=True)
    assert set(folder.rglob("*")) == before - {killed / "tokens.parquet"}
    (killed / "notes.txt").unlink()
    (killed / "tokens.parquet").mkdir()  # somebody's folder, of the name of a file that is listed
    (killed / "tokens.parquet" / "notes.txt").write_text("precious")
    assert verify(folder, clean=True).num_removed == 0
    assert (killed / "tokens.parquet" / "notes.txt").read_text() == "precious"
    (killed / "tokens.parquet" / "notes.txt").rename(folder / "notes.txt")
    (killed / "tokens.parquet").rmdir()
    assert verify(folder, clean=True).num_removed == 1
    assert not killed.exists()
    assert (
        invoke("gap", "control:recall", "control:bigram", "--slices", folder / "slices").status == 0
    )
    assert all(
        (stranger / "tokens.parquet").read_text() == "precious"
        for stranger in (*strangers, elsewhere)
    )


def test_only_a_lock_says_whether_a_process_is_at_work(tmp_path, monkeypatch):
    """Containers that share a folder share numbers of processes and names of hosts, too."""
    program = """if True:
        import pathlib, sys
        from recallkit.storage.unfinished import new_folder
        with new_folder(pathlib.Path(sys.argv[1]), ["table.parquet"]):
            print("at work", flush=True)
            sys.stdin.read()
    """
    command = [sys.executable, "-c", program, str(tmp_path / "table.parquet")]
    mark = tmp_path / ".table.parquet.new.partial" / MARK
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "at work\n"
        # a number that no process has
        mark.write_text(re.sub(r'"process": "[^"]*"', '"process": "4194305"', mark.read_text()))
        assert verify(tmp_path, clean=True).num_removed == 0
        process.kill()
    mark.write_text(mark.read_text().replace("4194305", f"{os.getpid():>7}"))
    with monkeypatch.context() as without:
        without.setattr(fcntl, "flock", lambda *_: refuse_locks())
        assert verify(tmp_path, clean=True).num_removed == 0, "nobody knows"
    with leftover(mark.parent, None) as is_left, pytest.raises(BlockingIOError):
        assert is_left
        open_marked(mark.parent, [], tmp_path, wait=False)
    assert verify(tmp_path, clean=True).num_removed == 1


def refuse_locks() -> None:
    raise OSError(errno.ENOLCK, "no locks")


def test_unfinished_work_is_kept_by_clean(folder):
    from recallkit.storage.journal import Journal

    with pytest.raises(KeyboardInterrupt), Journal(folder / "new.parquet", {"seed": 1}) as journal:
        parquet_files.write_parquet(journal.part(0), [], artifacts_schema(), {})
        journal.commit({})
        raise KeyboardInterrupt
    verified = verify(folder, clean=True)
    assert lines(verified) == [("unfinished", ".new.parquet.partial")]
    state = journal.folder / "state.json"
    state.write_text(state.read_text().replace('"num_parts": 1', '"num_parts": 2'))
    assert ("changed", ".new.parquet.partial/state.json") in lines(verify(folder))


def test_unfinished_work_of_other_options_than_the_result_beside_it_is_no_leftover(folder):
    from recallkit.storage.journal import Journal

    target = folder / "slices" / "tokens.parquet"
    options = parquet_files.read_manifest(target)["options"]
    for key, kind in (({**options, "max_count": 77}, "unfinished"), (options, "leftover")):
        with pytest.raises(KeyboardInterrupt), Journal(target, key, force=True) as journal:
            journal.commit({})
            raise KeyboardInterrupt
        assert lines(verify(folder)) == [(kind, "slices/.tokens.parquet.partial")]


def artifacts_schema():
    import pyarrow as pa

    return pa.schema([("a", pa.int8())])


def test_files_of_others_are_left_alone(tmp_path):
    import polars as pl

    pl.DataFrame({"text": ["a"]}).write_parquet(tmp_path / "corpus.parquet")
    (tmp_path / "config.json").write_text('{"mine": 1}')
    (tmp_path / "notes.txt").write_text("x")
    verified = verify(tmp_path, clean=True)
    assert lines(verified) == [("foreign", ".")], "one note, not one for each"
    assert verified.is_sound
    assert len(list(tmp_path.iterdir())) == 3


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
    assert (finding.kind, finding.problem) == ("changed", "cannot be read (File name too long)")


def test_a_folder_that_is_not_there_is_told(tmp_path):
    outcome = assert_manners(invoke("verify", tmp_path / "none"))
    assert outcome.status == 1
    assert "no such directory" in outcome.err
    (tmp_path / "file").touch()
    assert "file: not a directory" in assert_manners(invoke("verify", tmp_path / "file")).err


@pytest.mark.parametrize(
    "field", ["score_files", "scores", "models", "reference", "options", "typed"]
)
def test_a_manifest_that_lacks_a_field_ends_nothing(folder, monkeypatch, field):
    """As a folder from elsewhere may have it, whose digests are right."""
    command = (
        "control:recall",
        "control:bigram",
        "--slices",
        folder / "slices",
        "--counts",
        folder / "counts.duckdb",
    )
    for name in ("gap", "intervene"):
        assert invoke(name, *command).status == 0
    real = parquet_files.footer_facts

    def lacking(path: Path) -> dict[str, object] | None:
        facts = real(path)
        return (
            None
            if facts is None
            else {name: value for name, value in facts.items() if name != field}
        )

    monkeypatch.setattr(parquet_files, "footer_facts", lacking)
    assert verify(folder).num_files > 5
