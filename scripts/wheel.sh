#!/bin/bash
# Builds the wheel of dist/python with the programs of bin in it, the same bytes each time.
#
#   scripts/wheel.sh PYTHON BIN OUT [ARCH]    PYTHON has hatchling; the wheel goes to OUT.
#                                             The programs are for ARCH (default: amd64).
set -euo pipefail
python=$1 bin=$(realpath "$2") out=$(realpath -m "$3")
cd "$(dirname "$0")/../dist/python"
export PREMIX_WHEEL_BIN=$bin PREMIX_WHEEL_ARCH=${4:-amd64} SOURCE_DATE_EPOCH=1577836800
umask 022
"$python" -m hatchling build -t wheel -d "$out" >/dev/null
