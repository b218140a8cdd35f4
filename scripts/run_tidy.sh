#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs clang-tidy 19 on the change: the sources that differ from the merge base with main (on main itself: from the
# parent commit), and for a changed header one source that includes it. Needs a configured build/dev.
#
# Usage: scripts/run_tidy.sh [--all]
#   --all  every source (also what happens where there is no commit to compare with)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

compiled() { sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' build/dev/compile_commands.json | sort -u; }

changed() {
  git diff --name-only --diff-filter=d "$1" -- '*.cpp' '*.h'
  git ls-files --others --exclude-standard -- '*.cpp' '*.h'
}

# A header is checked through one source that includes it.
sources_of() {
  local path
  while read -r path; do
    if [[ $path == *.cpp ]]; then
      echo "$PWD/$path"
    else
      # However it is spelled there; a header that nobody includes must not end the loop.
      { grep -rlE --include='*.cpp' -- "#include [<\"](.*/)?$(basename "$path")[>\"]" src apps tests fuzz || true; } |
        sort | head -n 1 | sed "s#^#$PWD/#"
    fi
  done
}

base=
if [[ ${1:-} != --all ]]; then
  base=$(python3 -c 'import sys; sys.path.insert(0, "scripts"); import source_tree; print(source_tree.merge_base(source_tree.REPOSITORY) or "")')
fi
if [[ $base ]]; then
  mapfile -t files < <(comm -12 <(changed "$base" | sources_of | sort -u) <(compiled))
else
  mapfile -t files < <(compiled)
fi
if ((${#files[@]} == 0)); then
  echo "tidy: no source changed"
  exit 0
fi
echo "tidy: ${#files[@]} source(s)"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
patterns=()
for file in "${files[@]}"; do patterns+=("^$file\$"); done
if ! run-clang-tidy-19 -p build/dev -j "$(nproc)" -quiet "${patterns[@]}" >"$log" 2>&1; then
  grep -vE '^\[ *[0-9]+/[0-9]+\]|warnings generated\.$|^Suppressed |^Use -header-filter|^Running clang-tidy|^$' "$log" >&2
  exit 1
fi
