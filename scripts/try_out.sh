#!/usr/bin/env bash
# Runs an installed recallkit in a new folder: on text files with control models, then on a part of the built-in text with the zoo.
# usage: scripts/try_out.sh VENV     (all output is recallkit's)
set -euo pipefail
venv=$(cd "$1" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export RECALLKIT_HOME="$folder/home"
recallkit="$venv/bin/recallkit"

# Text that every Python has: files of its standard library.
library=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
cat "$library"/{argparse,inspect,typing,tarfile}.py >train.txt
cat "$library"/{doctest,optparse,difflib}.py >valid.txt

"$recallkit" --version
"$recallkit" count train.txt -o counts.duckdb >count.out
"$recallkit" slice valid.txt --counts counts.duckdb --max-count 5 --seq-len 256 -o slices >slice.out
"$recallkit" gap control:recall control:bigram --slices slices
"$recallkit" slice --limit-tokens 20K -o built-in >built-in.out
"$recallkit" gap zoo:attention zoo:rwkv --slices built-in
"$recallkit" eval-recall --limit 16
