#!/bin/sh
# Compile flight.proto into barrage/server/_proto/flight_descriptor.py (needs grpcio-tools).
set -eu
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" proto_schemas/generate.py
