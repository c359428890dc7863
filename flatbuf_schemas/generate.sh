#!/bin/sh
# Generate barrage/wire/_fbs from the schemas. Needs flatc (Debian: flatbuffers-compiler).
# Usage: generate.sh [directory to write to instead of barrage/wire/_fbs]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=${1:-$here/../barrage/wire/_fbs}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for schema in barrage_1_0_0 barrage_2020 arrow_ipc; do
    flatc --python -o "$scratch" "$here/$schema.fbs"
done
mkdir -p "$target"
for package in r1_0_0 draft_2020 arrow_ipc; do
    rm -rf "${target:?}/$package"
done
cp -R "$scratch/barrage/wire/_fbs/." "$target/"
find "$target" -name __pycache__ -type d -prune -exec rm -rf {} +
