#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing to build, test and check Metrale on Debian 12; does nothing where all is there.
#
# Usage: scripts/setup.sh [packages|python|cuda|peers]
#   packages  the Debian packages only
#   python    the Python packages of scripts/requirements.txt only, into build/venv
#   cuda      nvcc where there is none: from the Python index, into build/cuda-toolkit
#   peers     the headers of FlashInfer and CUTLASS only, into build/peers, for a build with METRALE_PEERS=ON
# Without an argument: packages and python.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# docs/adr/0012-dependencies.md says why each library is here.
packages=(
  g++ cmake ninja-build ccache pkg-config git xz-utils python3 python3-venv python3-pip
  libfmt-dev libspdlog-dev libcli11-dev nlohmann-json3-dev libsimdjson-dev libxxhash-dev libhwy-dev
  libpcre2-dev libutf8proc-dev liburing-dev prometheus-cpp-dev
  libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev libdnnl-dev ocl-icd-opencl-dev
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

# FlashInfer's wheel carries its own headers, CUTLASS's and the CCCL that they are written for.
setup_peers() {
  local wheel=flashinfer-python==0.7.4 folder=build/peers
  [[ -f $folder/installed.txt && $(<"$folder/installed.txt") == "$wheel" ]] && return
  say "fetching the headers of $wheel into $folder"
  rm -rf "$folder"
  mkdir -p "$folder"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$folder" "$wheel" ||
    die "pip could not fetch $wheel; is the Python package index reachable?"
  python3 - "$folder" <<'UNZIP'
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
data = "flashinfer/data/"
wanted = tuple(data + part for part in ("include/", "cutlass/include/", "cccl/libcudacxx/include/", "cccl/cub/cub/",
                                        "cccl/thrust/thrust/")) + ("flashinfer_python-0.7.4.dist-info/licenses/",)
for wheel in folder.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(wanted)])
    wheel.unlink()
UNZIP
  echo "$wheel" >"$folder/installed.txt"
}

# nvcc 13.0 and what it compiles with; nothing here runs on this machine.
setup_cuda() {
  local nvcc
  for nvcc in nvcc /usr/local/cuda/bin/nvcc build/cuda-toolkit/bin/nvcc; do
    if command -v "$nvcc" >/dev/null; then return; fi
  done
  local wheels=build/downloads/cuda
  setup_packages
  say "installing nvcc into build/cuda-toolkit"
  mkdir -p "$wheels"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$wheels" \
    'nvidia-cuda-nvcc==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-runtime==13.0.*' \
    'nvidia-cuda-cccl==13.0.*' || die "pip could not fetch nvcc; is the Python package index reachable?"
  local wheel
  for wheel in "$wheels"/*.whl; do
    python3 -m zipfile -e "$wheel" build/cuda-toolkit.part
  done
  mv build/cuda-toolkit.part/nvidia/cu13 build/cuda-toolkit
  rm -rf build/cuda-toolkit.part
  chmod +x build/cuda-toolkit/bin/* build/cuda-toolkit/nvvm/bin/*
}

case ${1:-all} in
  packages) setup_packages ;;
  python) setup_python ;;
  cuda) setup_cuda ;;
  peers) setup_peers ;;
  all)
    setup_packages
    setup_python
    ;;
  *) die "unknown argument '$1': packages, python, cuda or peers" ;;
esac
