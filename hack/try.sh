#!/usr/bin/env bash
# A network namespace called "onenth-try" that plays a node: two web servers that say their
# address, and a fake API server that serves docs/try/cluster.yaml. Ctrl-C removes everything.
set -euo pipefail
cd "$(dirname "$0")/.."
hack/setup.sh run
ns=onenth-try
pages="$(mktemp -d)"
inside() { ip netns exec "$ns" "$@"; }
ip netns add "$ns"
cleanup() {
  trap '' INT TERM
  ip netns pids "$ns" | xargs --no-run-if-empty kill
  wait
  ip netns delete "$ns"
  rm -rf "$pages" .try.kubeconfig
}
trap cleanup EXIT
trap 'exit 130' INT TERM
ip -n "$ns" link set lo up
ip -n "$ns" route add 10.96.0.0/16 dev lo # Service addresses need a route, as on any node
for address in 10.64.0.11 10.64.0.12; do
  ip -n "$ns" address add "$address/32" dev lo
  mkdir "$pages/$address"
  echo "hello from $address" >"$pages/$address/index.html"
  inside .venv/bin/python -m http.server 8080 --bind "$address" --directory "$pages/$address" \
    >/dev/null 2>&1 &
done
inside .venv/bin/python -m tests.fakes.apiserver --port 8001 --node node-1 \
  --manifests docs/try/cluster.yaml --write-kubeconfig .try.kubeconfig &
wait "$!" # a trap interrupts this, and not a command in the foreground
