#!/bin/sh
# Generate barrage/wire/_fbs and tests/helpers/_fbs from the schemas. Needs flatc (Debian:
# flatbuffers-compiler).
# Usage: generate.sh [directory to write to instead of the repository]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=${1:-$here/..}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for schema in barrage_1_0_0 barrage_2020 arrow_ipc; do
    flatc --python -o "$scratch" "$here/$schema.fbs"
done
for package in barrage/wire/_fbs/r1_0_0 barrage/wire/_fbs/draft_2020 tests/helpers/_fbs/arrow_ipc; do
    rm -rf "${target:?}/$package"
    mkdir -p "$target/$package"
    cp "$scratch/$package/"*.py "$target/$package/"
done
