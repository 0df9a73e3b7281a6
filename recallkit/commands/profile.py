"""`profile`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from recallkit.commands.adapter import Outcome, command
from recallkit.declarations import File, Option, path
from recallkit.errors import UsageError
from recallkit.options import LabelledTextOptions, LabelOptions, ProfileOptions, TextOptions, WritingOptions, out_option

if TYPE_CHECKING:
    from recallkit.profiling.tables import ProfileTables


@dataclass(frozen=True)
class Profile(ProfileOptions, LabelledTextOptions, WritingOptions):
    """Which text is profiled, and how."""

    out: Annotated[File | None, out_option(default="profile")] = None
    _: KW_ONLY
    slices: Annotated[File | None, Option("Profile the labelled tokens of a slice directory instead of text.", metavar="DIR")] = None

    def __post_init__(self) -> None:
        """Raises UsageError also for slices together with what they bring along."""
        super().__post_init__()
        if self.slices is not None and not self.is_usual(TextOptions, LabelOptions):
            remedy = "leave out what decides them"
            raise UsageError("a slice directory brings its own text, sequences and counts", where="--slices", remedy=remedy)


@command(
    "profile",
    Profile,
    examples=(
        "recallkit profile valid.jsonl.zst --counts counts.duckdb --figures figures",
        "recallkit profile 'books/*.txt' --boundary document --seq-len 4096 -o books",
    ),
    exports=True,
)
def profile(asked: Profile) -> Outcome["ProfileTables"]:
    """Profile a text by source: repeated bigrams per sequence, their distances and positions, AR hits; in bounded memory, resumes.

    The text is given as for `slice` (from Python also as `texts`), or as a slice directory, `slices`. Columns: see `ProfileTables`.
    """
    from recallkit import builtin, profiling
    from recallkit.profiling.charts import profile_figures
    from recallkit.profiling.view import print_profile, profile_json, profile_tables
    from recallkit.storage import artifacts

    if asked.slices is not None:
        folder = path(asked.out) or Path("profile")
        tables = profiling.profile_slices(path(asked.slices), folder, asked)
    else:
        is_sample = asked.is_usual(TextOptions, LabelOptions) and (asked.stop_words, asked.x_min) == ("ours", None)
        read = builtin.resolve_slice_defaults(asked, path(asked.out), is_sample=is_sample, name="profile")
        folder = read.out
        tables = profiling.profile(read.text, folder, counts=read.counts, rare=read.rare, seq_len=read.seq_len, options=asked)
    manifest = artifacts.read_manifest(folder / "profile.parquet")
    return Outcome(
        value=lambda: tables,
        show=lambda: print_profile(tables, manifest, folder),
        json=lambda: profile_json(tables, manifest, folder),
        exports=lambda: [(tables, profile_tables(tables, manifest), folder)],
        figures=lambda: profile_figures(tables, manifest["seq_len"]),
    )
