"""Large literals, cut out of a file before MLIR or XLA reads it.

Each of their parsers copies a literal three times or more. What is cut out is replaced by a placeholder that keeps its type:
in HLO the custom call, and in MLIR's text the resource, that also stand for constants without values (`elision`), under a
name that nobody else can have chosen; in MLIR's bytecode a value that no other constant of the file has. When the module is
built, its name leads back to the literal, and the elements are copied once, from the file to where they stay.
"""
