#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the API reference, build/docs/html, from the public headers and the pages under docs/. Any warning of Doxygen's is
# an error (a member whose name says it all may stay without a comment).
#
# Usage: scripts/make_docs.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rm -rf build/docs
mkdir -p build/docs
doxygen docs/Doxyfile
# Doxygen 1.9 cannot place a specialisation of a template that it has not read (std::hash) and knows no anchors of Markdown
# headings; scripts/check_links.py checks those.
if grep -vE "scope for class std::|\.md:[0-9]+: warning: unable to resolve reference" build/docs/warnings.txt >&2; then
  exit 1
fi
echo "docs: build/docs/html/index.html"
