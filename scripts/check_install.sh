#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs build/release into a fresh prefix and builds examples/consumer against it twice: with CMake's find_package and
# with pkg-config. Both programs must run. The manual page and the completion scripts must be there.
#
# Usage: scripts/check_install.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$PWD/build/install-check
prefix=$work/prefix
rm -rf "$work"
mkdir -p "$work"
cmake --install build/release --prefix "$prefix" >"$work/install.log"

cmake -S examples/consumer -B "$work/cmake" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" >"$work/configure.log"
cmake --build "$work/cmake" >"$work/build.log" || { cat "$work/build.log" >&2 && exit 1; }
"$work/cmake/consumer"

pc_file=$(find "$prefix" -name metrale.pc)
export PKG_CONFIG_PATH=${pc_file%/*}
read -ra cflags <<<"$(pkg-config --cflags metrale)"
read -ra libs <<<"$(pkg-config --libs metrale)"
g++ "${cflags[@]}" examples/consumer/main.cpp -o "$work/consumer" "${libs[@]}"
"$work/consumer"
share=$prefix/share
for file in man/man1/metrale.1 bash-completion/completions/metrale zsh/site-functions/_metrale \
  fish/vendor_completions.d/metrale.fish; do
  [[ -s $share/$file ]] || { echo "install: share/$file is missing" >&2 && exit 1; }
done
bash -n "$share/bash-completion/completions/metrale"
"$prefix/bin/metrale" man | cmp - "$share/man/man1/metrale.1"

echo "install: examples/consumer builds and runs with find_package and with pkg-config"
