#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing to build, test and check Metrale on Debian 12; does nothing where all is there.
#
# Usage: scripts/setup.sh [packages|python]
#   packages  the Debian packages only
#   python    the Python packages of scripts/requirements.txt only, into build/venv
# Without an argument: both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# docs/adr/0012-dependencies.md says why each library is here.
packages=(
  g++ cmake ninja-build ccache pkg-config git python3 python3-venv python3-pip
  libfmt-dev libspdlog-dev libcli11-dev nlohmann-json3-dev libsimdjson-dev libxxhash-dev libhwy-dev
  libpcre2-dev libutf8proc-dev
  libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev libdnnl-dev
  clang-19 clang-format-19 clang-tidy-19 libclang-rt-19-dev doxygen groff-base
)

say() { echo "setup: $*" >&2; }
die() {
  say "$*"
  exit 1
}

missing_packages() {
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null | sed -n 's/^installed //p') || true
  comm -23 <(printf '%s\n' "${packages[@]}" | sort) <(sort -u <<<"$installed")
}

setup_packages() {
  command -v apt-get >/dev/null && command -v dpkg-query >/dev/null ||
    die "this is not Debian; install the equivalents of: ${packages[*]}"
  local missing
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || return 0
  ((EUID == 0)) || die "packages are missing; run as root: apt-get install ${missing[*]}"
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq || die "apt-get update failed; is the Debian package index reachable?"
  apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null ||
    die "apt-get could not install ${missing[*]}; Metrale is built on Debian 12"
}

setup_python() {
  local venv=build/venv wanted=scripts/requirements.txt
  cmp -s "$wanted" "$venv/installed.txt" && return
  say "installing the packages of $wanted into $venv"
  [[ -x $venv/bin/python ]] || python3 -m venv "$venv" || die "cannot make $venv; is python3-venv installed?"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$wanted" ||
    die "pip could not install the packages of $wanted; is the Python package index reachable?"
  cp "$wanted" "$venv/installed.txt"
}

case ${1:-all} in
  packages) setup_packages ;;
  python) setup_python ;;
  all)
    setup_packages
    setup_python
    ;;
  *) die "unknown argument '$1': packages or python" ;;
esac
