"""Coverage-guided fuzzing of the readers of bytes, by atheris: `python -m tests.fuzz.guided NAME [-max_total_time=60 ...]`.

Where atheris is not installed nothing else needs it. NAME is one of READERS; libFuzzer's options follow. A finding is a traceback.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from recallkit.errors import UserError


def _read_corpus(suffix: str) -> Callable[[Path], object]:
    from recallkit.text.corpus import CorpusOptions, open_corpus

    def read(path: Path) -> object:
        return sum(len(document.text) for document in open_corpus([str(path)], CorpusOptions(skip_bad=True)).documents())

    return read


def _rows(path: Path) -> object:
    from recallkit.recall.tasks import load_rows

    return load_rows("own", path)


def _rwkv(path: Path) -> object:
    from recallkit.models.rwkv_file import read_rwkv_file

    return read_rwkv_file(path)


def _manifest(path: Path) -> object:
    from recallkit.storage.artifacts import read_manifest

    return read_manifest(path)


def _tokenizer(path: Path) -> object:
    from recallkit.text.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(str(path))
    return tokenizer.token_bytes, tokenizer.encode(["a b"]), tokenizer.digest


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "jsonl": (".jsonl", lambda path: _read_corpus(".jsonl")(path)),
    "zst": (".jsonl.zst", lambda path: _read_corpus(".jsonl.zst")(path)),
    "gz": (".jsonl.gz", lambda path: _read_corpus(".jsonl.gz")(path)),
    "parquet": (".parquet", lambda path: _read_corpus(".parquet")(path)),
    "text": (".txt", lambda path: _read_corpus(".txt")(path)),
    "rows": (".jsonl", _rows),
    "rwkv": (".bin", _rwkv),
    "manifest": (".parquet", _manifest),
    "tokenizer": (".json", _tokenizer),
}
"""Name -> the suffix of its files, and what reads one."""


def feed(name: str, content: bytes, folder: Path) -> None:
    """Gives these bytes to a reader, as a file; whatever it raises but a UserError goes through."""
    suffix, read = READERS[name]
    path = folder / f"fed{suffix}"
    path.write_bytes(content)
    try:
        read(path)
    except UserError as error:
        refused = error.line()
    else:
        return
    assert refused.isprintable()


def main() -> None:
    import atheris

    name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["recallkit"]):
        import recallkit.storage.artifacts
        import recallkit.text.corpus  # noqa: F401 (what is imported here is instrumented)

    with tempfile.TemporaryDirectory() as folder:
        atheris.Setup([sys.argv[0], *options], lambda content: feed(name, content, Path(folder)))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
