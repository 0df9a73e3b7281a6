"""From text to a figure in Python: how much does a model gain when a rare bigram has occurred in
its context before?

    python examples/07_text_to_figure.py                   # the built-in text, into text-to-figure/
    python examples/07_text_to_figure.py FOLDER OUT        # text of your own

The cells (`# %%`) run one by one in editors that know them (VS Code, PyCharm, Spyder, Jupyter with
jupytext). Each step reuses finished results: change the last cells, run it again, and only those
are computed.
"""

# ruff: noqa: B018  (the last line of a cell is what a notebook shows)

# %% What is read, compared and written
from __future__ import annotations

import sys
from pathlib import Path

import altair as alt
import polars as pl

import recallkit

GIVEN = (
    [] if hasattr(sys, "ps1") else sys.argv[1:]
)  # in a notebook the arguments are the notebook's own
TEXT = (
    GIVEN[0] if GIVEN else "demo:validation"
)  # a folder, a file, a preset; this one is the built-in text
OUT = Path(GIVEN[1] if len(GIVEN) > 1 else "text-to-figure")
MODELS = {
    "attention": "zoo:attention",
    "Based": "zoo:based",
    "Hyena": "zoo:hyena",
}  # the reference first
RARE = 5  # occurrences in the 3 million tokens that these models were trained on

# %% Label the text: which tokens complete a bigram that occurred before, and how often was it in
# the training text?
slices = OUT / "slices"
counts = recallkit.zoo_counts()  # for models of your own: recallkit.count("train/*.jsonl.zst", ...)
by_source = recallkit.slice(
    TEXT, slices, counts=counts, max_count=RARE, seq_len=256, limit_tokens=30_000
)
by_source

# %% Score every token with every model
scores = recallkit.score(list(MODELS.values()), slices=slices)
scores

# %% How much of attention's recall the others retain
reference, *others = MODELS.values()
tables = recallkit.gap(reference, others, slices=slices, out=OUT / "gap")
hits = tables.gap.filter(source="ALL", slice="ar_hit")
recall = hits.select(
    "model", "ppl_model", "gain_model", "retained", "retained_ci_low", "retained_ci_high"
)
recall

# %% A question of one's own: the probability of tokens whose bigram is rare, by how often it
# occurred before in the context
tokens = recallkit.tokens(slices, MODELS)
occurrences = pl.col("occurrences")
probabilities = [
    (-pl.col(f"nll_{name}").cast(pl.Float64)).exp().mean().alias(name) for name in MODELS
]
grouped = (
    tokens.filter(pl.col("train_count") <= RARE)
    .with_columns(
        times=pl.when(occurrences >= 3)
        .then(pl.lit("3 or more"))
        .otherwise(occurrences.cast(pl.String))
    )
    .group_by("times")
    .agg(pl.len().alias("tokens"), *probabilities)
    .sort("times")
    .collect()
)
grouped

# %% Which words are they? The rare bigrams that the first model predicts and the last one does not,
# as text
first, *_, last = MODELS
texts = recallkit.token_texts(slices)
examples = (
    tokens.filter("ar_hit")
    .group_by("prev_token", "token")
    .agg(
        pl.len().alias("hits"),
        (pl.col(f"nll_{last}") - pl.col(f"nll_{first}")).mean().alias("behind"),
    )
    .sort("behind", "token", descending=True)
    .head(10)
    .collect()
    .join(
        texts.rename({"token": "prev_token", "text": "before"}),
        on="prev_token",
        maintain_order="left",
    )
    .join(texts, on="token", maintain_order="left")
    .select("before", "text", "hits", "behind")
)
examples

# %% The figure
drawn = grouped.unpivot(
    on=list(MODELS), index=["times", "tokens"], variable_name="model", value_name="p"
)
colours = alt.Scale(domain=list(MODELS), range=["#1b1b1b", "#0072b2", "#d55e00"])
figure = (
    alt.Chart(drawn, width=340, height=220)
    .mark_line(point=alt.OverlayMarkDef(size=45))
    .encode(
        x=alt.X(
            "times:O",
            title="earlier occurrences of the bigram in the context",
            axis=alt.Axis(labelAngle=0),
        ),
        y=alt.Y("p:Q", title="mean probability of its second token"),
        color=alt.Color(
            "model:N", scale=colours, sort=None, legend=alt.Legend(title=None, orient="bottom")
        ),
        tooltip=["model", "times", "tokens", alt.Tooltip("p", format=".3f")],
    )
    .configure_view(stroke=None)
    .configure_axis(titleFontWeight="normal")
)
figure

# %% Save the figure, and its numbers
figure.save(OUT / "rare_bigrams.svg")
figure.save(OUT / "rare_bigrams.png", ppi=300)
grouped.write_csv(OUT / "rare_bigrams.csv")
print(by_source.frame, scores.frame.drop("path"), recall, grouped, examples, sep="\n")
print(f"The figure: {OUT / 'rare_bigrams.svg'}")
