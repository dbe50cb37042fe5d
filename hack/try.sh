#!/usr/bin/env bash
# A network namespace called "onenth-try" that plays a node: two web servers that say their
# address, and a fake API server that serves docs/try/cluster.yaml. Ctrl-C removes everything.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" -ne 0 ]; then
  echo "hack/try.sh makes a network namespace, which takes root: try sudo hack/try.sh" >&2
  exit 3
fi
hack/setup.sh run
ns="${TRY_NAMESPACE:-onenth-try}"
kubeconfig=".${ns#onenth-}.kubeconfig"
pages=".${ns#onenth-}.pages"
# Not even kill -9 of this script leaves what it starts behind.
inside() { exec setpriv --pdeathsig TERM ip netns exec "$ns" "$@"; }
used() { ip netns pids "$ns" 2>/dev/null || true; }
if [ -n "$(used)" ]; then
  echo "The namespace $ns is in use, by" >&2
  used | xargs ps -o pid=,args= -p | cut -c -80 >&2
  echo "End that with Ctrl-C where it runs, or with kill and its number, then try again." >&2
  exit 1
fi
cleanup() {
  trap '' INT TERM
  used | xargs --no-run-if-empty kill 2>/dev/null || true # some have ended by themselves
  wait
  ip netns delete "$ns" 2>/dev/null || true
  rm -rf "$pages" "$kubeconfig"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
ip netns delete "$ns" 2>/dev/null || true # what a killed one left
rm -rf "$pages"
ip netns add "$ns"
ip -n "$ns" link set lo up
ip -n "$ns" link add eth0 type veth peer name wire
ip -n "$ns" address add 192.0.2.10/24 dev eth0 # the Node's
ip -n "$ns" link set eth0 up
ip -n "$ns" link set wire up
ip -n "$ns" route add default dev eth0 # Service addresses need a route, as on any node
for address in 10.64.0.11 10.64.0.12; do
  ip -n "$ns" address add "$address/32" dev lo
  mkdir -p "$pages/$address"
  echo "hello from $address" >"$pages/$address/index.html"
  inside .venv/bin/python hack/pages.py "$address" 8080 "$pages/$address" >/dev/null 2>&1 &
done
inside .venv/bin/python -m tests.fakes.apiserver --port 8001 --node node-1 \
  --manifests "${TRY_MANIFESTS:-docs/try/cluster.yaml}" --write-kubeconfig "$kubeconfig" &
wait "$!" # a trap interrupts this, and not a command in the foreground
