"""Trains the built-in tokenizer: byte-level BPE of 4,096 entries, on training text only.

Reads the training part of the `demo` text and, given with --shards, JSON Lines shards in the Pile's
format; documents of the sets named with --leave-out are dropped, so that no evaluation text of the
demo is seen. The shipped file was made with READMEs of packages, four shards of mixed text (books,
papers, encyclopedia, law, dialogue) and `--leave-out Github`, because that set contains the
standard library, whose validation modules are evaluation text.

    python examples/01_train_tokenizer.py --out recallkit/data/tokenizer.json [--shards
    'shards/*.jsonl.zst' --leave-out Github]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from recallkit.text.corpus import open_corpus

if TYPE_CHECKING:
    from collections.abc import Iterator

END_TOKEN = "<|endoftext|>"
VOCAB_SIZE = 4096
# Plain byte-level splitting (GPT-2's), which every fast tokenizer reads.
SPLIT = pre_tokenizers.ByteLevel(add_prefix_space=False)


def training_texts(shards: list[str], leave_out: set[str], limit: int) -> Iterator[str]:
    """Texts of the demo's training part, then of the shards, at most `limit` characters of each
    source."""
    seen: dict[str, int] = {}
    for document in open_corpus(["demo:train", *shards]).documents():
        if document.source in leave_out or seen.get(document.source, 0) > limit:
            continue
        seen[document.source] = seen.get(document.source, 0) + len(document.text)
        yield document.text


def train(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer that can encode any text; id 0 is the end token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = SPLIT
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=True,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def main() -> None:
    """Parses the command line, trains and saves the tokenizer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shards", nargs="*", default=[])
    parser.add_argument("--leave-out", nargs="*", default=[])
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE)
    parser.add_argument("--limit", type=int, default=8_000_000, help="characters of each source")
    options = parser.parse_args()
    tokenizer = train(
        training_texts(options.shards, set(options.leave_out), options.limit), options.vocab_size
    )
    tokenizer.save(str(options.out), pretty=False)
    print(f"{options.out}: {tokenizer.get_vocab_size()} entries")


if __name__ == "__main__":
    main()
