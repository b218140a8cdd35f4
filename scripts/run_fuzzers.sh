#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzzer of build/fuzz (preset fuzz, target fuzzers) in turn. Seeds come from fuzz/corpus/<name>/ and new inputs
# go to build/fuzz/corpus/<name>/; what breaks a parser is left in build/fuzz/findings/.
#
# Usage: scripts/run_fuzzers.sh SECONDS [NAME...]
#   SECONDS  time for each fuzzer
#   NAME     fuzz/NAME_fuzz.cpp; without one, all
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  sed -n '3,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit 2
}

[[ ${1:-} =~ ^[0-9]+$ ]] || usage
seconds=$1
shift
names=("$@")
if ((${#names[@]} == 0)); then
  mapfile -t names < <(find fuzz -maxdepth 1 -name '*_fuzz.cpp' -printf '%f\n' 2>/dev/null | sed 's/_fuzz\.cpp$//' | sort)
fi
failed=0
for name in "${names[@]}"; do
  program=build/fuzz/bin/${name}_fuzz
  [[ -x $program ]] || { echo "fuzz: $program is not built" >&2 && exit 1; }
  mkdir -p "build/fuzz/corpus/$name" build/fuzz/findings
  options=(-max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
    -artifact_prefix="build/fuzz/findings/$name-")
  [[ -f fuzz/corpus/$name.dict ]] && options+=(-dict="fuzz/corpus/$name.dict")
  corpora=("build/fuzz/corpus/$name")
  [[ -d fuzz/corpus/$name ]] && corpora+=("fuzz/corpus/$name")
  log=build/fuzz/$name.log
  if "$program" "${options[@]}" "${corpora[@]}" >"$log" 2>&1 </dev/null; then
    echo "fuzz: $name clean, $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $seconds s"
  else
    echo "fuzz: $name found something; the end of $log:" >&2
    tail -n 40 "$log" >&2
    failed=1
  fi
done
exit $failed
