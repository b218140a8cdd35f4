# SPDX-License-Identifier: Apache-2.0
# Doxygen's input filter: a header's // comments, plain as the house writes them, become /// and trailing ones ///<. The
# comment at the top of the file becomes the file's own. A backslash in a comment is a backslash, never a command. Every
# line keeps its number.
FNR == 1 && /SPDX-License-Identifier/ { print "/// @file"; top = 1; next }
!/^[ \t]*\/\// { top = 0 }
/^[ \t]*\/\/($|[^\/])/ { gsub(/\\/, "\\\\&"); sub(/\/\//, "///"); print; next }
/[;,{(][ \t]*\/\/ / { sub(/\/\/ /, "///< ") }
{ print }
