# SPDX-License-Identifier: Apache-2.0
# Doxygen's input filter: a header's // comments, plain as the house writes them, become /// and trailing ones ///<. The
# comment at the top of the file becomes the file's own. Every line keeps its number.
FNR == 1 && /SPDX-License-Identifier/ { print "/// @file"; top = 1; next }
top && /^\/\// { sub(/^\/\//, "///"); print; next }
{ top = 0 }
/^[ \t]*\/\/($|[^\/])/ { sub(/\/\//, "///"); print; next }
/[;,{(][ \t]*\/\/ / { sub(/\/\/ /, "///< "); print; next }
{ print }
