"""Count the parameters of the real classes of the ``transformers`` library, without allocating a weight.

Writes ``model_params.csv``: one row per file of ``configs/``. Run where ``torch`` and ``transformers`` are installed:
``python tests/reference/make_model_params.py``.
"""

import csv
import json
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM

    rows = []
    for path in sorted((HERE / "configs").glob("*.json")):
        table = json.loads(path.read_text(encoding="utf-8"))
        table.pop("quantization_config", None)
        table.pop("auto_map", None)
        config = AutoConfig.for_model(table.pop("model_type"), **table).get_text_config()
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        if config.tie_word_embeddings:
            model.tie_weights()
        total = sum(weight.numel() for weight in {id(p): p for p in model.parameters()}.values())
        rows.append([path.name, total, type(model).__name__, transformers.__version__])
    with (HERE / "model_params.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["config", "total_params", "class", "transformers"])
        writer.writerows(rows)


if __name__ == "__main__":
    main()
