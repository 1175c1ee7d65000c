"""HLO modules, as serialized protos and as text: checked, and rewritten into what XLA's own code can take.

XLA's parser and converter end the process on bad input, and on some good input. What stands before them is pure Python:

    text   -> text_guard -> XLA's parser -+
    proto  -------------------------------+-> model -> guard (checks) -> rewrite -> XLA's converter

`wire` decodes the fields of all instructions at once, with NumPy; `shapes`, `opcodes` and `shardings` know what the fields
mean. Proto field numbers are those of `xla/service/hlo.proto` and `xla/xla_data.proto`.
"""
