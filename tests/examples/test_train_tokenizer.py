"""The tokenizer's training on the built-in text: a byte-level BPE whose first id ends a text."""

from __future__ import annotations

from recallkit.text.tokenizers import load_tokenizer


def test_a_small_tokenizer_gives_every_text_back(load, home, tmp_path, monkeypatch, capsys):
    path = tmp_path / "tokenizer.json"
    monkeypatch.setattr(
        "sys.argv", ["example.py", "--out", str(path), "--vocab-size", "300", "--limit", "20000"]
    )
    load("01_train_tokenizer").main()
    assert capsys.readouterr().out.endswith(f"{path}: 300 entries\n")
    tokenizer = load_tokenizer(str(path))
    assert tokenizer.end_token_id == 0
    [ids] = tokenizer.encode(["return 界 self"])[:1]
    assert b"".join(tokenizer.token_bytes[i] for i in ids) == "return 界 self".encode()
