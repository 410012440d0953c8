"""Scripts that try something which may fail, hang or crash; each runs in a process of its own.

They print facts as JSON lines, import nothing of flexinfer, and let what goes wrong be raised.
"""
