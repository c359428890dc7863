#!/bin/sh
# Compile every .proto here into barrage/transport/_proto/ (needs grpcio-tools).
set -eu
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" proto_schemas/generate.py
