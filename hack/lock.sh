#!/usr/bin/env bash
# Writes the image's lock files anew: the newest versions that pyproject.toml allows, with the
# hashes of their files. Usage: hack/lock.sh
set -euo pipefail
cd "$(dirname "$0")/.."
hack/setup.sh test
tools=.venv/lock
[ -x "$tools/bin/uv" ] || {
  python3 -m venv "$tools"
  "$tools/bin/pip" --quiet --disable-pip-version-check install uv
}
compile() { # compile INPUT OUTPUT
  "$tools/bin/uv" pip compile --quiet --no-config --upgrade --generate-hashes --universal \
    --python-version 3.11 --no-emit-index-url --no-annotate \
    --custom-compile-command hack/lock.sh --output-file "$2" "$1"
}
compile pyproject.toml requirements.lock
compile - requirements-build.lock <<<"$(.venv/bin/python -c '
import tomllib
print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"]))')"
