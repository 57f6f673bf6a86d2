"""Operations on tensors: signature, torch reference, then what is faster. Knows no sequence and no
session. ``triton_*`` need Triton too, and are imported only when a GPU asks for them.
"""
