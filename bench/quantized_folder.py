"""A folder that `jaxinfer quantize` made, in jaxinfer and in transformers: do logits agree?

1. a virtual environment for the peer: `pip install torch transformers compressed-tensors`
2. `jaxinfer quantize MODEL FOLDER --method …`
3. `python bench/quantized_folder.py FOLDER --transformers-python VENV/bin/python`

Both run in float32; inputs of a W8A8 folder stay float in both.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

PEER = Path(__file__).parent / "peers" / "logits_transformers.py"
TEXTS = (
    "Once upon a time there was a lighthouse keeper who counted the ships.",
    "def mean(values):\n    return sum(values) / len(values)\n",
    "Die Brücke wurde 1894 gebaut; seitdem fahren Züge darüber.",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder")
    parser.add_argument("--transformers-python", required=True, help="python of the peer's venv")
    parser.add_argument("--bound", type=float, default=1e-3, help="largest difference allowed")
    return parser.parse_args(arguments)


def our_logits(folder: str) -> tuple[list[list[int]], list[np.ndarray]]:
    """Token ids of the texts, and the logits after each of their tokens."""
    from jaxinfer import LLM

    options = {"max_model_len": 128, "max_num_seqs": 2, "show_progress": False}
    with LLM(folder, dtype="float32", **options) as llm:
        tokenizer = llm.get_tokenizer()
        ids = [tokenizer.encode(text) for text in TEXTS]
        return ids, [llm.logits(one) for one in ids]


def peer_logits(folder: str, python: str, ids: list[list[int]]) -> list[np.ndarray]:
    """The same in transformers, which also tokenizes the texts and must get the same ids."""
    with tempfile.TemporaryDirectory() as scratch:
        asked, answer = Path(scratch) / "asked.json", Path(scratch) / "answer.npz"
        asked.write_text(json.dumps({"texts": TEXTS, "ids": ids}))
        subprocess.run([python, str(PEER), folder, str(asked), str(answer)], check=True)
        with np.load(answer) as found:
            return [found[f"logits{number}"] for number in range(len(ids))]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    ids, ours = our_logits(options.folder)
    theirs = peer_logits(options.folder, options.transformers_python, ids)
    differences = [float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True)]
    agreed = np.mean(
        np.concatenate(
            [a.argmax(axis=1) == b.argmax(axis=1) for a, b in zip(ours, theirs, strict=True)]
        )
    )
    result = {
        "folder": Path(options.folder).name,
        "tokens": sum(map(len, ids)),
        "largest_logit": round(max(float(np.abs(one).max()) for one in ours), 2),
        "largest_difference": max(differences),
        "top1_agreement": float(agreed),
    }
    print(json.dumps(result))
    return 0 if max(differences) <= options.bound else 1


if __name__ == "__main__":
    sys.exit(main())
