#!/usr/bin/env bash
# Installs what the project needs and is not there: system packages by apt, and a virtual
# environment in .venv. Usage: hack/setup.sh run|test|e2e
set -euo pipefail
trap 'exit 130' INT TERM # an interrupted question is not answered with "missing"
cd "$(dirname "$0")/.."
what="${1:-run}"
python="${PYTHON:-python3}"

missing=()
need() { # need COMMAND PACKAGE: the package, unless the command is there
  command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] || missing+=("$2")
}
need xtables-nft-multi iptables
need conntrack conntrack
need ip iproute2
need "$python" python3
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if [ "$what" != run ]; then
  need nfacct nfacct
  need nft nftables
  # python-iptables, which the tests read legacy tables with, has no wheel.
  need gcc gcc
  "$python" - <<'EOF' 2>/dev/null || missing+=(python3-dev libc6-dev)
import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())
EOF
fi
if [ "$what" = e2e ]; then
  if ! docker info >/dev/null 2>&1; then
    need docker docker.io
    need dockerd docker.io
  fi
  # Without a registry the base image is made from packages.
  if ! docker image inspect debian:trixie-slim >/dev/null 2>&1 \
    && ! timeout 60 docker pull --quiet debian:trixie-slim >/dev/null 2>&1; then
    need debootstrap debootstrap
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring)
  fi
fi
if [ "${#missing[@]}" -gt 0 ]; then
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "missing: ${missing[*]}; install them (as root, with apt-get: apt-get install ${missing[*]})" >&2
    exit 3
  fi
  echo "installing ${missing[*]}"
  log="$(mktemp)"
  trap 'rm -f "$log"' EXIT
  if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    cat "$log" >&2
    exit 3
  fi
fi

# The status page is tried in a real browser; only that test is skipped without one.
if [ "$what" = test ] && ! command -v chromium >/dev/null 2>&1 && [ "$(id -u)" -eq 0 ] \
  && command -v apt-get >/dev/null 2>&1; then
  echo "installing chromium"
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium; } \
    >/dev/null 2>&1 || echo "chromium cannot be installed here; its test will be skipped" >&2
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
  echo "$python is $("$python" --version 2>&1), and 3.11 or newer is needed: set PYTHON to one" >&2
  exit 3
}

# Debian 13 and later ship the docker command in a package of its own.
if [ "$what" = e2e ] && ! command -v docker >/dev/null 2>&1; then
  apt-get install -y --no-install-recommends docker-cli >/dev/null
fi

[ "$what" = e2e ] && what="test"
stamp=".venv/.$what-$(cksum <pyproject.toml | tr ' ' -)"
unpack_prometheus() { # prometheus and promtool, without the service that the package starts
  if [ -x .venv/bin/promtool ] || command -v promtool >/dev/null 2>&1; then return; fi
  local folder
  folder="$(mktemp -d)"
  if (cd "$folder" && { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; } \
    && dpkg-deb -x prometheus_*.deb .) >"$folder/log" 2>&1; then
    cp "$folder"/usr/bin/prom* .venv/bin/
  else
    cat "$folder/log" >&2
    echo "no prometheus: the tests of alerts and monitoring are skipped" >&2
  fi
  rm -rf "$folder"
}

[ -e "$stamp" ] && exit 0
[ "$what" = run ] && [ -e "${stamp/.run-/.test-}" ] && exit 0 # that has everything
echo "setting up .venv with $("$python" --version)"
[ -x .venv/bin/python ] || "$python" -m venv .venv
pip=(.venv/bin/python -m pip --quiet --disable-pip-version-check install)
"${pip[@]}" --upgrade 'pip>=25.1'
case "$what" in
  run) "${pip[@]}" --editable . ;;
  test)
    "${pip[@]}" --editable '.[legacy]' --group test --group lint
    unpack_prometheus
    ;;
  *) echo "usage: hack/setup.sh run|test|e2e" >&2; exit 2 ;;
esac
touch "$stamp"
