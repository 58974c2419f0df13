"""A result leaves the tool: one small module per format.

``huggingface`` (config.json of a model family), ``vllm``, ``sglang``, ``trtllm`` (launch files), ``recipes``
(quantisation), ``tables`` (csv, parquet, json, markdown).
"""
