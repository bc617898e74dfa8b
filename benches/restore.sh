#!/bin/bash
# Seconds to put 64 files of 16 MiB back on disk: `undo` of their removal, and `cp -a` of the same files with `sync`.
#
#   benches/restore.sh [ROUNDS]
#
# Builds the release binary, and needs 4 GiB in TMPDIR, which must be on a disk. The files are programs and libraries of this
# machine. Both are measured in turn, and the medians are printed.
set -euo pipefail
rounds=${1:-7}
repository=$(cd "$(dirname "$0")/.." && pwd)
cargo build --release --quiet --manifest-path "$repository/Cargo.toml"
binary=${CARGO_TARGET_DIR:-$repository/target}/release/agent-snapshot
base=$(mktemp -d)
trap 'rm -rf "$base"' EXIT
export HOME=$base/home
mkdir "$HOME" "$base/files"
cd "$base/files"
find /usr -xdev -type f -size +20k -print0 | xargs -0 cat 2>/dev/null | head -c 1G | split -b 16M - file. || true
[ "$(ls | wc -l)" = 64 ]
cd "$base"

# Appends the seconds that a command takes to a file; what was written before is on disk already.
measure() {
    local times=$1 TIMEFORMAT=%R
    shift
    sync
    { time "$@" >/dev/null; } 2>>"$times"
}

copy() {
    cp -a files copy
    sync
}

for _ in $(seq "$rounds"); do
    "$binary" run --quiet rm -r files
    measure "$base/undo" "$binary" undo
    measure "$base/cp" copy
    rm -r copy "$HOME/.local"
done
for command in undo cp; do
    printf '%s %s\n' "$command" "$(sort -n "$base/$command" | sed -n "$(((rounds + 1) / 2))p")"
done
