#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs what build/cuda made into one archive that runs on a GPU machine with nothing but glibc and the NVIDIA driver:
# build/gpu/metrale-gpu.tar.xz, at most 40 MiB. It is unpacked and tried in an empty root before it counts.
#
# Usage: scripts/gpu_bundle.sh   (./dev gpu builds first)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bin=build/cuda/bin
out=build/gpu
bundle=$out/metrale-gpu
archive=$out/metrale-gpu.tar.xz
max_bytes=$((40 << 20))

die() {
  echo "gpu_bundle: $*" >&2
  exit 1
}

# The shared libraries of the programs, beside those that every glibc system has.
libraries() {
  ldd "$bundle"/bin/* | sed -n 's/^\t\(\S*\) => \(\/\S*\) .*/\1 \2/p' | sort -u |
    grep -vE '^(libc|libm|libdl|librt|libpthread|ld-linux-x86-64)\.so'
}

collect() {
  rm -rf "$bundle"
  mkdir -p "$bundle"/{bin,lib,golden}
  cp "$bin"/test_cuda_* "$bin"/metrale "$bundle/bin/"
  if [[ -e $bin/cuda_bench ]]; then cp "$bin/cuda_bench" "$bundle/bin/"; fi
  strip "$bundle"/bin/*
  local name path
  while read -r name path; do cp -L "$path" "$bundle/lib/$name"; done < <(libraries)
  cp -r tests/golden/engine "$bundle/golden/"
  cp scripts/gpu_check.py "$bundle/"
  git rev-parse --short HEAD >"$bundle/commit" 2>/dev/null || echo unknown >"$bundle/commit"
  git diff --quiet HEAD -- . ':!bench/results' ':!docs/benchmarks.md' 2>/dev/null || sed -i 's/$/-dirty/' "$bundle/commit"
}

# Nothing but the bundle, glibc and an empty /tmp: a missing library shows here and not on the GPU machine.
check_in_empty_root() {
  unshare --user --map-root-user --mount --pid --fork mount -t proc proc /proc 2>/dev/null || {
    tried="not tried in an empty root, because namespaces are not allowed here"
    return
  }
  local root
  root=$(mktemp -d)
  trap 'rm -rf "$root"' RETURN
  mkdir -p "$root"/{lib64,lib/x86_64-linux-gnu,tmp,proc}
  tar -xJf "$archive" -C "$root"
  cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
  local library
  for library in libc.so.6 libm.so.6 libdl.so.2 librt.so.1 libpthread.so.0; do
    cp -L "/lib/x86_64-linux-gnu/$library" "$root/lib/x86_64-linux-gnu/"
  done
  # /proc says where a program lies, which is where its libraries are looked for.
  try() { unshare --user --map-root-user --mount --pid --fork sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$root" "$@"; }
  local program
  for program in "$bundle"/bin/*; do
    program=/metrale-gpu/bin/$(basename "$program")
    case $program in
      */metrale) try "$program" devices >/dev/null ;;
      # It runs as far as finding that there is no device.
      */cuda_bench) { try "$program" 2>&1 || true; } | grep -q 'no NVIDIA driver' ;;
      *) try "$program" --gtest_list_tests >/dev/null ;;
    esac || die "$program does not run in an empty root"
  done
}

[[ -e $bin/metrale ]] || die "build/cuda is not built: ./dev gpu"
collect
XZ_OPT='-T0 -6' tar -cJf "$archive" -C "$out" metrale-gpu
size=$(stat -c %s "$archive")
((size <= max_bytes)) || die "$archive has $size bytes, more than $max_bytes"
tried="runs in an empty root"
check_in_empty_root
echo "gpu_bundle: $archive, $((size >> 10)) KiB, $tried; on the GPU machine:" >&2
echo "gpu_bundle:   tar -xJf metrale-gpu.tar.xz && python3 metrale-gpu/gpu_check.py --out gpu_check.json" >&2
